// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/kured-agent/kured-agent/internal/plan"
)

func init() {
	register("ostree", kind{
		about: About{
			Watched: "`/run/ostree/staged-deployment` and its lock (inotify, and every 5 minutes), on hosts with ostree " +
				"alone: `rpm-ostree` and `bootc` take over where those are installed",
			Required: "a deployment is staged and not locked; one that is written to the boot loader at once, without " +
				"`--stage`, is not seen",
			Cleared: "the deployment is discarded or locked, or the boot",
		},
		build: func(_ map[string]any, env Env) Source {
			return &ostree{root: env.Root, log: env.Logger}
		},
		presets: []map[string]any{nil}, installed: byOstree,
	})
}

// ostree reads what libostree staged, for hosts without a service that could be asked.
type ostree struct {
	root string
	log  *slog.Logger
}

func (o *ostree) Name() string { return "ostree" }

func (o *ostree) Run(ctx context.Context, report func(State)) error {
	return followDirs(ctx, o.log, []string{filepath.Join(o.root, ostreeRun)}, o.read, report)
}

func (o *ostree) read() State {
	d, err := readStaged(o.root)
	if err != nil {
		return State{Level: plan.Unknown, Err: err}
	}
	return stagedState(d, "ostree deployment")
}
