// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"unicode"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	agentName  = "org.kured.Agent1"
	agentPath  = "/org/kured/Agent1"
	agentIface = "org.kured.Agent1"
)

func init() {
	register("request", kind{
		about: About{
			Watched:  "our own object `org.kured.Agent1` on the bus, which `kured-agent request` calls",
			Required: "somebody asked for a reboot",
			Cleared:  "`kured-agent request --clear`, or the reboot",
		},
		build: func(_ map[string]any, env Env) Source {
			return &requests{bus: env.Bus, log: env.Logger, file: filepath.Join(env.Runtime, "requests.json"), hint: newHints()}
		},
		presets: []map[string]any{nil},
	})
}

// requests are what was asked of our own object on the bus, by `kured-agent request` or a package's hook. They survive
// the agent and end with the boot.
type requests struct {
	bus  *bus.Bus
	log  *slog.Logger
	file string
	hint hints

	mu      sync.Mutex
	running bool
	list    []request
	broken  error // why the file can't be read
}

type request struct {
	ID     string `json:"id"`
	Reason string `json:"reason,omitempty"`
}

func (r *requests) Name() string { return "request" }

func (r *requests) Run(ctx context.Context, report func(State)) error {
	list, err := loadRequests(r.file)
	if err != nil {
		r.log.Error("earlier requests can't be read", "file", r.file, "err", err)
	}
	r.mu.Lock()
	r.running, r.list, r.broken = true, list, err
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.running = false
	}()
	defer r.bus.Serve(agentName, func(conn *dbus.Conn) error {
		// A table of methods: Conn.Export finds them by reflection, for which the linker keeps every method of every type,
		// in this binary 3.6 MB.
		object := &requestObject{r}
		return conn.ExportMethodTable(map[string]any{
			"RequireReboot": object.RequireReboot, "ClearReboot": object.ClearReboot,
		}, agentPath, agentIface)
	})()
	defer r.bus.OnChange(r.hint.poke)()
	for {
		report(r.state())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.hint:
		}
	}
}

func (r *requests) state() State {
	note := ""
	if err := r.bus.Serving(agentName); err != nil {
		note = fmt.Sprintf("takes no requests: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) == 0 {
		if r.broken != nil {
			return State{Level: plan.Unknown, Err: r.broken, Note: note}
		}
		return State{Level: plan.NotRequired, Note: note}
	}
	reasons := make([]plan.Reason, len(r.list))
	for i, q := range r.list {
		reasons[i] = plan.Reason{ID: q.ID, Text: q.Reason, Kind: plan.KindFull}
	}
	return State{Level: plan.Required, Reasons: reasons, Note: note}
}

// change applies f to a copy of the list and takes the copy only once it is stored: an answered request is not lost.
func (r *requests) change(f func([]request) ([]request, *dbus.Error)) *dbus.Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.running {
		return dbus.NewError("org.freedesktop.DBus.Error.Failed", []any{"kured-agent takes no requests now"})
	}
	list, refused := f(slices.Clone(r.list))
	if refused != nil {
		return refused
	}
	if err := writeJSON(r.file, list); err != nil {
		r.log.Error("storing a request", "err", err)
		return dbus.NewError("org.freedesktop.DBus.Error.Failed", []any{"storing the request: " + err.Error()})
	}
	r.list, r.broken = list, nil
	r.hint.poke()
	return nil
}

func (r *requests) require(q request) *dbus.Error {
	return r.change(func(list []request) ([]request, *dbus.Error) {
		i := slices.IndexFunc(list, func(other request) bool { return other.ID == q.ID })
		switch {
		case i >= 0:
			list[i] = q
		case len(list) >= plan.MaxReasons:
			return nil, dbus.NewError("org.freedesktop.DBus.Error.LimitsExceeded",
				[]any{fmt.Sprintf("%d requests are pending already", len(list))})
		default:
			list = append(list, q)
		}
		return list, nil
	})
}

func (r *requests) clear(id string) *dbus.Error {
	return r.change(func(list []request) ([]request, *dbus.Error) {
		return slices.DeleteFunc(list, func(q request) bool { return id == "" || q.ID == id }), nil
	})
}

// admit refuses arguments of other types, which godbus would convert (65 into "A"), and callers other than root and our
// own user. The latter is asked besides the bus policy, so that a policy that is missing or too wide opens nothing.
func (r *requests) admit(msg dbus.Message, signature string) *dbus.Error {
	if got, _ := msg.Headers[dbus.FieldSignature].Value().(dbus.Signature); got.String() != signature {
		return invalidArgs(fmt.Sprintf("the arguments are %q, not %q", got, signature))
	}
	sender, _ := msg.Headers[dbus.FieldSender].Value().(string)
	body, err := r.bus.Call(context.Background(), bus.Call{
		Destination: "org.freedesktop.DBus", Path: "/org/freedesktop/DBus",
		Member: "org.freedesktop.DBus.GetConnectionUnixUser", Args: []any{sender},
	})
	if err == nil && len(body) == 1 {
		if uid, ok := body[0].(uint32); ok && (uid == 0 || int64(uid) == int64(os.Getuid())) {
			return nil
		}
	}
	return dbus.NewError("org.freedesktop.DBus.Error.AccessDenied",
		[]any{"only root and the user of kured-agent may do this"})
}

// requestObject is what the bus sees. Its properties and its introspection are exported by the report package.
type requestObject struct{ r *requests }

// RequireReboot asks for a reboot until ClearReboot or the next boot. The same id again replaces its reason.
func (o *requestObject) RequireReboot(msg dbus.Message, id, reason string) *dbus.Error {
	if err := o.r.admit(msg, "ss"); err != nil {
		return err
	}
	if id == "" {
		return invalidArgs("the id is empty")
	}
	if wrong := wrongText("id", id, plan.MaxReasonID) + wrongText("reason", reason, plan.MaxReasonText); wrong != "" {
		return invalidArgs(wrong)
	}
	return o.r.require(request{ID: id, Reason: reason})
}

// ClearReboot takes one request back, or all for an empty id. An unknown id is no error.
func (o *requestObject) ClearReboot(msg dbus.Message, id string) *dbus.Error {
	if err := o.r.admit(msg, "s"); err != nil {
		return err
	}
	return o.r.clear(id)
}

func invalidArgs(message string) *dbus.Error {
	return dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{message})
}

// wrongText returns what is wrong with a text from a caller, or "".
func wrongText(what, s string, size int) string {
	if len(s) > size {
		return fmt.Sprintf("the %s is longer than %d bytes; ", what, size)
	}
	for _, c := range s {
		if !unicode.IsPrint(c) {
			return fmt.Sprintf("the %s holds control characters; ", what)
		}
	}
	return ""
}

func loadRequests(path string) ([]request, error) {
	content, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseRequests(content)
}

func parseRequests(content []byte) ([]request, error) {
	var list []request
	if err := json.Unmarshal(content, &list); err != nil {
		return nil, fmt.Errorf("reading the stored requests: %w", err)
	}
	if len(list) > plan.MaxReasons {
		return nil, fmt.Errorf("reading the stored requests: %d are more than %d", len(list), plan.MaxReasons)
	}
	for _, q := range list {
		if q.ID == "" || wrongText("id", q.ID, plan.MaxReasonID)+wrongText("reason", q.Reason, plan.MaxReasonText) != "" {
			return nil, errors.New("reading the stored requests: an entry is not valid")
		}
	}
	return list, nil
}
