// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"log/slog"
	"slices"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// Log writes one line per change of the phase, of what blocks it, of a source's health and of the credential's. Other news is for debugging.
type Log struct{ logger *slog.Logger }

// NewLog logs to logger.
func NewLog(logger *slog.Logger) *Log { return &Log{logger} }

func (l *Log) Take(before, after Update) {
	level := slog.LevelDebug
	if after.Phase != before.Phase || !slices.Equal(after.Blocked, before.Blocked) {
		level = slog.LevelInfo
	}
	if troubled(after) && !troubled(before) || after.Phase == plan.GivingUp.String() {
		level = slog.LevelWarn
	}
	if level > slog.LevelDebug || after.Why != before.Why {
		l.logger.Log(context.Background(), level, "phase",
			"phase", after.Phase, "why", after.Why, "reboot", after.Level.String())
	}
	l.sources(before, after)
	switch is, was := after.credentialTrouble(), before.credentialTrouble(); {
	case is != "" && is != was:
		l.logger.Warn("credential", "trouble", is)
	case is == "" && was != "":
		l.logger.Info("credential is fine again")
	}
}

func (l *Log) Run(context.Context) {}

func troubled(u Update) bool { return u.Unhealthy != "" || u.NotHelped }

// sources tells which sources broke and which work again.
func (l *Log) sources(before, after Update) {
	was := make(map[string]string, len(before.Sources))
	for _, s := range before.Sources {
		was[s.Name] = s.Err
	}
	for _, s := range after.Sources {
		switch {
		case s.Err != "" && s.Err != was[s.Name]:
			l.logger.Warn("source can't be read", "source", s.Name, "level", s.Level.String(), "err", s.Err)
		case s.Err == "" && was[s.Name] != "":
			l.logger.Info("source can be read again", "source", s.Name, "level", s.Level.String())
		}
	}
}
