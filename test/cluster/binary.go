// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ModuleRoot returns the folder of the agent's go.mod above the working directory.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/kured-agent/kured-agent\n") {
			return dir, nil
		}
	}
	return "", fmt.Errorf("looking for the module root: no go.mod of kured-agent above the working directory")
}

// Binary returns the path of the control plane program and builds it when the cache has none, which takes minutes;
// a line of progress goes to progress every 15 s meanwhile.
func Binary(ctx context.Context, progress io.Writer) (string, error) {
	root, err := ModuleRoot()
	if err != nil {
		return "", err
	}
	build := exec.CommandContext(ctx, filepath.Join(root, "test", "controlplane", "build.sh"))
	build.Stderr = progress
	out, err := build.Output()
	if err != nil {
		return "", fmt.Errorf("building the test control plane: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
