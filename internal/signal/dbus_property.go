// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"fmt"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

func init() {
	register("dbus-property", kind{
		about: About{
			Watched:  "one property of one service on the system bus (`PropertiesChanged`, and every 10 minutes)",
			Required: "the property has the given value",
			Cleared:  "it has another one, or the service has been off the bus for 2 minutes",
		},
		keys: []key{
			{name: "name", required: true, check: isBusName},
			{name: "path", required: true, check: isObjectPath},
			{name: "interface", required: true, check: isInterface},
			{name: "property", required: true, check: isMember},
			{name: "equals", required: true, check: isValue},
		},
		build: func(options map[string]any, env Env) Source {
			str := func(key string) string { return options[key].(string) }
			return &property{
				bus: env.Bus, service: str("name"), path: str("path"),
				iface: str("interface"), property: str("property"), equals: options["equals"],
			}
		},
	})
}

// property requires a reboot while a property of any service has a given value. The service is never started for it.
type property struct {
	bus                            *bus.Bus
	service, path, iface, property string
	equals                         any
}

func (p *property) Name() string { return "dbus-property:" + p.iface + "." + p.property }

func (p *property) Run(ctx context.Context, report func(State)) error {
	return followBus(ctx, p.bus, bus.Match{
		Sender: p.service, Path: p.path,
		Interface: "org.freedesktop.DBus.Properties", Member: "PropertiesChanged", Arg0: p.iface,
	}, p.read, report)
}

func (p *property) read(ctx context.Context) (State, error) {
	value, err := p.bus.Get(ctx, p.service, p.path, p.iface, p.property)
	if err != nil {
		return State{}, classify(err, fmt.Sprintf("the bus policy or the service %s denies reading the property", p.service))
	}
	return p.state(value.Value())
}

func (p *property) state(value any) (State, error) {
	equal, ok := compare(p.equals, value)
	switch {
	case !ok:
		return State{}, fmt.Errorf("comparing property %s.%s: it is a %T, not like the configured %v",
			p.iface, p.property, value, p.equals)
	case !equal:
		return State{Level: plan.NotRequired}, nil
	}
	return State{Level: plan.Required, Reasons: []plan.Reason{{
		ID:   fmt.Sprintf("%s=%v", p.property, p.equals),
		Text: fmt.Sprintf("%s.%s of %s is %v", p.iface, p.property, p.service, p.equals),
		Kind: plan.KindFull,
	}}}, nil
}
