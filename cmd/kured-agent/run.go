// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/kured-agent/kured-agent/internal/config"
	"github.com/kured-agent/kured-agent/internal/report"
)

func runCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the agent (what kured-agent.service starts)",
		Long: `Runs the agent in the foreground until SIGTERM. SIGHUP reads the configuration again: a new one that is right
is applied, a wrong one is told and the old one kept.

On SIGTERM the agent leaves the node as it is in a shutdown or a restart of its unit, and undoes taint, cordon and slot
otherwise.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return misfit(o.runAgent(c.Context(), slog.New(report.NewHandler(level(o.debug)))))
		},
	}
}

func (o *options) runAgent(ctx context.Context, logger *slog.Logger) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	unlock, err := o.host().Lock("agent.lock")
	if err != nil {
		return err
	}
	defer unlock()
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	for {
		next, err := o.serve(ctx, cfg, reload, logger)
		if err != nil || next == nil {
			return err
		}
		cfg = next
		logger.Info("configuration read again")
	}
}

// serve runs one agent with one configuration. It returns the next configuration after a reload, or nil at the end.
func (o *options) serve(
	ctx context.Context, cfg *config.Config, reload <-chan os.Signal, logger *slog.Logger,
) (*config.Config, error) {
	now, err := o.thisBoot(ctx, logger)
	if err != nil {
		return nil, err
	}
	p, err := o.wire(cfg, wiring{sources: true}, now, logger)
	if err != nil {
		return nil, err
	}
	var background sync.WaitGroup
	defer background.Wait()
	inner, stop := context.WithCancel(ctx)
	defer stop()
	// What the last words need outlives the loop: the bus to ask who stops us, the reporter to say goodbye.
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	p.reporter.Add(report.NewObject(p.bus, p.latest))
	p.metrics = true // the boot unit leaves them to this process
	if err := p.addSinks(logger); err != nil {
		return nil, err
	}
	background.Go(func() { p.reporter.Run(lasting) })
	p.start(lasting, logger)
	p.watchdog()
	background.Go(func() { p.renewal.run(inner) })
	if err := report.Ready(); err != nil {
		logger.Warn("telling systemd", "err", err)
	}
	var next *config.Config
	background.Go(func() {
		next = o.awaitReload(inner, reload, now, logger)
		stop()
	})
	p.agent.Run(inner)
	if ctx.Err() != nil {
		_ = report.Stopping()
		p.agent.Leave(lasting)
	}
	p.agent.Logind.LetGo() // else a shutdown would wait for an agent that a reload has replaced
	end()
	background.Wait()
	return next, nil
}

// awaitReload returns the next right configuration that a reload finds, or nil when ctx ends.
func (o *options) awaitReload(
	ctx context.Context, reload <-chan os.Signal, now boot, logger *slog.Logger,
) *config.Config {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-reload:
		}
		_ = report.Reloading()
		cfg, err := o.load()
		if err == nil {
			_, err = o.wire(cfg, wiring{sources: true, dry: true}, now, logger) // opens nothing: it only shows whether it can be
		}
		if err == nil {
			return cfg
		}
		logger.Error("the new configuration can't be used; keeping the old one", "err", err)
		_ = report.Ready()
	}
}

// watchdog has the loop, and nothing beside it, tell systemd that it lives.
func (p *parts) watchdog() {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every == 0 {
		return
	}
	p.agent.AliveEvery = every / 2
	p.agent.Alive = func() { _ = report.Watchdog() }
}

// addSinks has everybody told whom the configuration names.
func (p *parts) addSinks(logger *slog.Logger) error {
	r := p.reporter
	r.Add(report.NewLog(logger), report.NewSystemd())
	events := report.NewEvents(report.NewPoster(p.kube.Core()), logger)
	counters := events.Counters()
	r.Add(events)
	if len(p.config.Notify.URLs) > 0 {
		notifier, err := report.NewNotifier(p.config.Notify.URLs, logger)
		if err != nil {
			return fmt.Errorf("notify.urls: %w", err)
		}
		counters = append(counters, notifier.Counters()...)
		r.Add(notifier)
	}
	if m := p.config.Metrics; p.metrics && (m.Listen != "" || m.Textfile != "") {
		r.Add(report.NewMetrics(report.MetricsOptions{
			Latest: p.latest, Listen: m.Listen, Textfile: m.Textfile, Counters: counters, Logger: logger,
		}))
	}
	return nil
}

// onceTimeout bounds commands that look once.
const onceTimeout = 30 * time.Second
