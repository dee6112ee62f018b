// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/overstep"
)

const (
	agentToken = "/var/lib/kured-agent/token" // the renewed one

	// The API server grants ten minutes at least, which is too long to wait for the half of it.
	renewAge  = 5 * time.Second
	renewSoon = "[Service]\nExecStart=\nExecStart=/usr/bin/kured-agent %s --renew-after %s\n"
)

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// jwt is what of a token is compared.
type jwt struct {
	text   string
	ID     string `json:"jti"`
	Issued int64  `json:"iat"`
}

func (j jwt) age() time.Duration { return time.Since(time.Unix(j.Issued, 0)) }

// String shows nobody the token.
func (j jwt) String() string {
	return fmt.Sprintf("%s of %s", j.ID, time.Unix(j.Issued, 0).Format(time.TimeOnly))
}

// kubeconfigToken is the token in the kubeconfig of the node.
func (n *node) kubeconfigToken() jwt {
	n.s.Helper()
	config, err := clientcmd.Load([]byte(n.MustExec("cat", "/etc/kured/kubeconfig")))
	n.s.must(err)
	user := config.AuthInfos["kured-agent:"+n.Name()]
	if user == nil {
		n.s.Fatalf("%s: the kubeconfig is another node's", n.Name())
	}
	return n.token(user.Token)
}

// renewedToken is the one that the agent keeps; empty when there is none.
func (n *node) renewedToken() jwt {
	n.s.Helper()
	if !n.Exists(agentToken) {
		return jwt{}
	}
	return n.token(n.MustExec("cat", agentToken))
}

func (n *node) token(text string) jwt {
	n.s.Helper()
	j := jwt{text: strings.TrimSpace(text)}
	parts := strings.Split(j.text, ".")
	if len(parts) != 3 {
		n.s.Fatalf("%s: a token of %d parts", n.Name(), len(parts))
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	n.s.must(err)
	n.s.must(json.Unmarshal(claims, &j))
	return j
}

// confined makes a node that has the package and the credential of the two commands. Its reboot is required already.
func (s *scene) confined(name, suite string) *node {
	s.Helper()
	n := s.bare(name, suite)
	n.Install(deb)
	n.Write("/etc/kured/config.d/quick.toml", quick, 0o644)
	for unit, command := range map[string]string{"kured-agent": "run", "kured-agent-boot": "boot"} {
		n.Write("/etc/systemd/system/"+unit+".service.d/renew.conf", fmt.Sprintf(renewSoon, command, renewAge), 0o644)
	}
	n.MustRun("systemctl", "daemon-reload")
	s.c.Pod(name, name, cluster.PodOptions{Owner: "ReplicaSet"})
	s.c.WaitRunning(name)
	n.requireByFile("linux-image")
	if out := n.enrol("--lifetime", "10m"); !strings.Contains(out, "every right of an agent, and no other") {
		s.Errorf("%s: %s", name, out)
	}
	return n
}

// confineEvictions applies the optional policy, too, until the end of the test.
func (s *scene) confineEvictions() {
	s.Helper()
	root, err := cluster.ModuleRoot()
	s.must(err)
	policy := filepath.Join(root, "packaging/kubernetes/optional/policy-eviction.yaml")
	s.c.MustKubectl("apply", "-f", policy)
	s.Cleanup(func() { _, _ = s.c.Kubectl("delete", "-f", policy) })
}

// mustBePowerless looks at the agent's process.
func (n *node) mustBePowerless() {
	n.s.Helper()
	status := n.MustExec("cat", "/proc/"+n.UnitProperty("kured-agent.service", "MainPID")+"/status")
	uid := strings.TrimSpace(n.MustExec("id", "-u", "kured-agent"))
	none := strings.Repeat("0", 16)
	for key, want := range map[string]string{
		"Name": "kured-agent", "Uid": strings.TrimSpace(strings.Repeat(uid+"\t", 4)), "NoNewPrivs": "1", "Seccomp": "2",
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
	} {
		if !strings.Contains("\n"+status, "\n"+key+":\t"+want+"\n") {
			n.s.Errorf("%s: %s is not %q in\n%s", n.Name(), key, want, status)
		}
	}
	if uid == "0" {
		n.s.Errorf("%s: kured-agent is root", n.Name())
	}
	for _, unit := range []string{"kured-agent-boot.service", "kured-agent-shutdown.service"} {
		if user := n.UnitProperty(unit, "User"); user != "kured-agent" {
			n.s.Errorf("%s: %s runs as %q", n.Name(), unit, user)
		}
	}
}

// mustHaveRenewed looks into the audit log: between taint and return the token was renewed, and what gave the node back
// was a token of this boot.
func (n *node) mustHaveRenewed(enrolled, waiting jwt) {
	n.s.Helper()
	writes := n.s.c.WaitRequests(func(r cluster.Request) bool {
		return r.User == cluster.AgentUser && cluster.NodeWrites(n.Name())(r)
	}, 3, 5*time.Second)
	if len(writes) != 3 {
		n.s.Fatalf("%s: %d writes of the Node, want taint, cordon and return: %+v", n.Name(), len(writes), writes)
	}
	taint, back := writes[0], writes[2]
	between := n.s.c.Requests(func(r cluster.Request) bool {
		return r.Subresource == "token" && r.Node == n.Name() && r.Code == http.StatusCreated &&
			r.Time.After(taint.Time) && r.Time.Before(back.Time)
	})
	booted := n.Boots()[1].Started
	if back.Token == "" || !slices.ContainsFunc(between, func(r cluster.Request) bool {
		return r.Issued == back.Token && r.Time.After(booted)
	}) {
		n.s.Errorf("%s, booted at %s: the return at %s used token %q, which is none of\n%+v",
			n.Name(), booted, back.Time, back.Token, between)
	}
	now := n.renewedToken()
	if now.text == waiting.text || now.Issued <= waiting.Issued || waiting.Issued <= enrolled.Issued {
		n.s.Errorf("%s: tokens enrolled %s, waiting %s, now %s", n.Name(), enrolled, waiting, now)
	}
	if in := n.kubeconfigToken(); in.text != enrolled.text {
		n.s.Errorf("%s: the token in the kubeconfig became %s", n.Name(), in)
	}
	if !strings.Contains(n.Journal("kured-agent-boot.service", "kured-agent.service"), "credential renewed") {
		n.s.Errorf("%s: the journal does not tell of it", n.Name())
	}
	n.s.Logf("%s: %d renewals in the %s from taint to return", n.Name(), len(between), back.Time.Sub(taint.Time))
}

// rollOutConfined holds the fleet until each agent has renewed its token while it waits, and lets it reboot.
func (s *scene) rollOutConfined(nodes []*node) {
	s.Helper()
	enrolled, waiting := map[*node]jwt{}, map[*node]jwt{}
	for _, n := range nodes {
		enrolled[n] = n.kubeconfigToken()
		n.enable()
	}
	for _, n := range nodes {
		n.waitPhase("WaitingTurn")
		n.mustBePowerless()
		n.eventually("a renewed token that is due again", 40*time.Second, func() bool {
			waiting[n] = n.renewedToken()
			return n.tainted() && waiting[n].Issued > enrolled[n].Issued && waiting[n].age() > renewAge
		})
	}
	watch := s.watchCordons()
	s.resume()
	for _, n := range nodes {
		n.waitReturned(2)
	}
	for _, n := range nodes {
		n.mustHaveBoots(2)
		n.mustBePowerless()
		n.mustHaveRenewed(enrolled[n], waiting[n])
	}
	if most, told := watch.mostAtOnce(); most != 1 || len(told) != 2*len(nodes) {
		s.Errorf("%d nodes were cordoned at once, want 1, and each once:\n%s", most, strings.Join(told, "\n"))
	}
}

// loot is what whoever has been on a machine takes away.
type loot struct {
	stage   *overstep.Stage
	clients []*http.Client // of the enrolled, the renewed and the thief's own token
}

// steal takes the tokens of the node and tries everything with the newest. The machine goes on meanwhile.
func (n *node) steal() loot {
	n.s.Helper()
	stage, err := overstep.NewStage(n.s.Context(), n.s.c)
	n.s.Cleanup(stage.Clear)
	l := loot{stage: stage}
	n.s.must(err)
	for _, token := range []jwt{n.kubeconfigToken(), n.renewedToken()} {
		l.take(n.s, token.text)
	}
	tried, wrong := stage.TryAll(n.s.Context(), l.clients[1])
	for _, err := range wrong {
		n.s.Errorf("with the credential of %s: %v", n.Name(), err)
	}
	if len(wrong) > 0 { // nobody knows what is left of the Nodes
		n.s.FailNow()
	}
	n.s.Logf("%d attempts with the credential of %s, each refused in the words that it should be", tried, n.Name())
	// A renewal is no overstep, and gives the thief nothing that lasts longer.
	more, err := stage.Renew(n.s.Context(), l.clients[1])
	n.s.must(err)
	l.take(n.s, more)
	for i, client := range l.clients {
		if code, answer := l.look(n.s, client); code != http.StatusOK {
			n.s.Errorf("token %d is worth nothing yet: %d %s", i, code, answer)
		}
	}
	stage.Clear() // its slot is one that the machine will need
	return l
}

func (l *loot) take(s *scene, token string) {
	s.Helper()
	client, err := l.stage.Client(token)
	s.must(err)
	l.clients = append(l.clients, client)
}

func (l *loot) look(s *scene, client *http.Client) (code int, answer string) {
	s.Helper()
	response, err := client.Get(s.c.URL() + "/api/v1/nodes/" + overstep.Yours)
	s.must(err)
	defer response.Body.Close()
	return response.StatusCode, response.Status
}

// mustBeWorthless waits until the API server has forgotten the tokens: it remembers some seconds that one was good.
func (l *loot) mustBeWorthless(s *scene) {
	s.Helper()
	for i, client := range l.clients {
		s.c.Eventually(fmt.Sprintf("stolen token %d is worth nothing", i), 60*time.Second, func() bool {
			code, _ := l.look(s, client)
			return code == http.StatusUnauthorized
		})
	}
}

// createAnew deletes the Node, and has the kubelet register it as when it is started again.
func (n *node) createAnew() {
	n.s.Helper()
	before := n.node().UID
	n.kubelet.Down()
	n.s.c.MustKubectl("delete", "node", n.Name(), "--timeout=1m")
	n.kubelet.Up(n.BootID())
	if n.node().UID == before {
		n.s.Fatalf("%s is the same object", n.Name())
	}
}

var repairCommand = regexp.MustCompile(`kubectl kured enroll \S+ \| ssh \S+ sudo kured-agent enroll --kubeconfig -`)

// namedRepair is the command that the status of the agent names, when it says that the Node is another one.
func (n *node) namedRepair() string {
	out, _ := n.Exec("kured-agent", "status")
	out = strings.Join(strings.Fields(out), " ")
	if n.phase() != "Unreachable" || !strings.Contains(out, "deleted or created anew") {
		return ""
	}
	return repairCommand.FindString(out)
}

// typeAsAdmin runs a command line to the letter, as an admin in the network of the machines who has kubectl, its plugin
// and ssh.
func (n *node) typeAsAdmin(line string) string {
	n.s.Helper()
	dir := filepath.Dir(n.s.kured())
	kubectl, err := cluster.Binary(n.s.Context(), os.Stderr)
	n.s.must(err)
	admin, err := os.ReadFile(n.s.c.Admin())
	n.s.must(err)
	n.Write("/usr/local/bin/sudo", "#!/bin/sh\nexec \"$@\"\n", 0o755)
	for name, text := range map[string]string{
		"admin":   strings.ReplaceAll(string(admin), n.s.c.URL(), n.s.url),
		"kubectl": "#!/bin/sh\nexec " + kubectl + " kubectl \"$@\"\n",
		"ssh": fmt.Sprintf("#!/bin/sh\n[ \"$1\" = %s ] && shift || exit 255\n"+
			"exec nsenter --target %d --all --root --wdns=/ -- systemd-run --quiet --pipe --wait --collect -- \"$@\"\n",
			n.Name(), n.Boots()[len(n.Boots())-1].Leader),
	} {
		n.s.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700))
	}
	command := exec.CommandContext(n.s.Context(), "ip", "netns", "exec", n.s.hub.NetNS(), "sh", "-c", line)
	command.Env = append(os.Environ(),
		"PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "KUBECONFIG="+filepath.Join(dir, "admin"))
	out, err := command.CombinedOutput()
	if err != nil {
		n.s.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// Three machines, enrolled by the two commands and confined by every policy there is: a roll-out in which their tokens
// are renewed, a theft of one, and the Node of that one deleted and created anew.
func TestAFleetOfConfinedAgentsOutlivesRenewalsATheftAndANewNode(t *testing.T) {
	s := newScene(t)
	s.confineEvictions()
	s.pause()
	began := time.Now()
	step := func(what string) {
		t.Logf("%s: %s", what, time.Since(began).Round(100*time.Millisecond))
		began = time.Now()
	}
	mine := s.confined(overstep.Mine, debian12)
	nodes := []*node{mine, s.confined(overstep.Yours, debian13), s.confined("bystander", debian12)}
	step("enrolled")
	s.rollOutConfined(nodes)
	step("rolled out")
	stolen := mine.steal()
	step("stolen and tried")
	mine.createAnew()
	stolen.mustBeWorthless(s)
	step("worthless")
	mine.requireByFile("libc6")
	repair := ""
	mine.eventually("the agent says what repairs it", cycleBound, func() bool {
		repair = mine.namedRepair()
		return repair != ""
	})
	if mine.tainted() || mine.cordoned() || len(mine.slots()) > 0 {
		t.Errorf("without a credential: %v, slots %v", ours(mine.node()), mine.slots())
	}
	if out := mine.typeAsAdmin(repair); !strings.Contains(out, "installed /etc/kured/kubeconfig for node "+mine.Name()) {
		t.Errorf("%s: %s", repair, out)
	}
	mine.waitReturned(3)
	mine.mustHaveBoots(3)
	step("repaired by: " + repair)
	stolen.mustBeWorthless(s)
}
