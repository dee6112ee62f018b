// SPDX-License-Identifier: Apache-2.0

package machines

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kured-agent/kured-agent/test/cluster"
)

// HubAddress is the address in the hub that every machine reaches, where Cluster.ListenIn puts the API server.
const HubAddress = "10.88.0.1"

// Hub is the network of some machines: a namespace with a bridge and no way out.
type Hub struct {
	t        cluster.TB
	name     string // of the network namespace and of the cgroup
	dir      string
	cgroup   string
	scripts  string
	machines int
}

const statePrefix = "kured-agent-machines-"

// NewHub makes an empty network. It and its machines end with t.
func NewHub(t cluster.TB) *Hub {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatalf("booting machines needs root")
	}
	for _, program := range []string{"systemd-nspawn", "mmdebstrap", "ip", "unshare", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: run test/machines/install-deps.sh", err)
		}
	}
	clearLeftovers(t)
	root, err := cluster.ModuleRoot()
	if err != nil {
		t.Fatalf("%v", err)
	}
	h := &Hub{t: t, scripts: filepath.Join(root, "test", "machines")}
	lock, err := h.claim()
	if err != nil {
		t.Fatalf("making the state folder of the machines: %v", err)
	}
	t.Cleanup(func() {
		remove(h.name, h.dir)
		_ = lock.Close()
	})
	for _, command := range []string{
		"ip netns add HUB",
		"ip -n HUB link set lo up",
		// Its own address: else it takes the lowest of its ports, and each machine that joins may change it, so that those
		// before ask in vain for up to half a minute.
		"ip -n HUB link add br0 address 02:00:00:00:00:01 type bridge forward_delay 0 stp_state 0",
		"ip -n HUB addr add " + HubAddress + "/24 dev br0",
		"ip -n HUB link set br0 up",
	} {
		h.must(command)
	}
	return h
}

// NetNS is the name of the hub's network namespace, for Cluster.ListenIn.
func (h *Hub) NetNS() string { return h.name }

// Rootfs builds the root file system of a Debian suite with some more packages, or finds it in the cache, and returns
// its path.
func (h *Hub) Rootfs(suite string, packages ...string) string {
	h.t.Helper()
	build := exec.Command(filepath.Join(h.scripts, "rootfs.sh"), append([]string{suite}, packages...)...)
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		h.t.Fatalf("building a Debian root (%s): %v", suite, err)
	}
	return strings.TrimSpace(string(out))
}

// claim makes the state folder, whose name no other run on this host has, with a lock that says this program lives.
func (h *Hub) claim() (*os.File, error) {
	root, err := cgroupRoot()
	if err != nil {
		return nil, err
	}
	if h.dir, err = os.MkdirTemp("", statePrefix+"ka*"); err != nil {
		return nil, err
	}
	h.name = strings.TrimPrefix(filepath.Base(h.dir), statePrefix)
	h.cgroup = filepath.Join(root, h.name)
	// Locked before it gets its name: another run would take an unlocked one for a leftover.
	path := filepath.Join(h.dir, "lock")
	lock, err := os.OpenFile(path+".new", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return lock, errors.Join(
		unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB),
		os.Rename(path+".new", path),
		os.Chmod(h.dir, 0o755),
		os.Mkdir(h.cgroup, 0o755),
	)
}

// must runs one command without quoting in it; HUB stands for the namespace.
func (h *Hub) must(command string) {
	h.t.Helper()
	words := strings.Fields(strings.ReplaceAll(command, "HUB", h.name))
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		h.t.Fatalf("%s: %v: %s", strings.Join(words, " "), err, out)
	}
}

// clearLeftovers removes what killed tests left: state folders whose lock nobody holds.
func clearLeftovers(t cluster.TB) {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), statePrefix+"*"))
	for _, dir := range folders {
		lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			t.Logf("clearing away the machines of a test that was killed: %s", dir)
			remove(strings.TrimPrefix(filepath.Base(dir), statePrefix), dir)
		}
		_ = lock.Close()
	}
}

// remove ends and clears away everything of one hub.
func remove(name, dir string) {
	if root, err := cgroupRoot(); err == nil {
		killCgroup(filepath.Join(root, name))
	}
	namespaces, _ := filepath.Glob("/run/netns/" + name + "-*")
	for _, path := range append(namespaces, name) {
		_ = exec.Command("ip", "netns", "del", filepath.Base(path)).Run()
	}
	_ = os.RemoveAll(dir)
}

// cgroupRoot is where the cgroup 2 hierarchy is mounted: alone, or beside the legacy ones.
func cgroupRoot() (string, error) {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
			return root, nil
		}
	}
	return "", errors.New("finding the cgroup 2 hierarchy: it is mounted neither on /sys/fs/cgroup nor on /sys/fs/cgroup/unified")
}

// killCgroup kills every process below the cgroup at once and removes it.
func killCgroup(path string) {
	if err := os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0); err != nil {
		return // there is none
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		events, _ := os.ReadFile(filepath.Join(path, "cgroup.events"))
		if !strings.Contains(string(events), "populated 1") {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	removeCgroup(path)
}

func removeCgroup(path string) {
	var folders []string
	_ = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			folders = append(folders, path)
		}
		return nil
	})
	for _, folder := range slices.Backward(folders) { // the deepest first
		_ = unix.Rmdir(folder)
	}
}
