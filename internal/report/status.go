// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/text"
)

// Text is what `kured-agent status` prints while the agent runs. Times are in now's location, with the offset, since a
// machine's zone is seldom the reader's. Most important first: somebody reads it at three in the morning.
func Text(u Update, now time.Time) string {
	s := sheet{now: now}
	s.line(headline(u))
	s.gap()
	s.row("Phase", u.Phase+s.since(u.Since))
	s.row("Why", u.Why)
	if !u.Until.IsZero() {
		s.row("Until", s.moment(u.Until))
	}
	s.rows("Blocked by", s.blockedLines(u))
	s.rows("Beside", u.Beside)
	if u.Scheduled != "" {
		s.row("Scheduled", u.Scheduled+", by somebody else")
	}
	s.row("Reboot", map[plan.Level]string{
		plan.NotRequired: "not required",
		plan.Required:    "required",
		plan.Unknown:     "not known: a source that may ask for it can't be read",
	}[u.Level])
	s.rows("Reasons", reasonLines(u.Reasons))
	s.rows("Sources", s.sourceLines(u.Sources))
	s.gap()
	s.row("Node", nodeText(u))
	s.row("Slot", s.slotText(u))
	if u.Phase != starting {
		s.row("Window", s.windowText(u.Window))
	}
	s.row("API server", apiText(u.API))
	s.rows("Credential", s.credentialLines(u.Credential))
	s.gap()
	s.row("Last reboot", s.lastText(u.LastReboot))
	s.row("Last failure", s.failureText(u.Failure))
	if u.Dropped > 0 {
		s.row("Forged", fmt.Sprintf("%d D-Bus signals dropped: their sender was not the owner of the name", u.Dropped))
	}
	s.row("Agent", "kured-agent "+u.Version)
	return s.String()
}

// Down is what can be said while no agent answers: what is on the disk and what this boot is.
type Down struct {
	Node   string
	Why    string      // why it can't be asked, e.g. "kured-agent.service is inactive"
	Record plan.Record // the zero value if there is none
	Boot   string      // this boot's id
}

// DownText is what `kured-agent status` prints then.
func DownText(d Down, now time.Time) string {
	s := sheet{now: now}
	s.line(nodeName(text.Line(d.Node, maxName)) + ": THE AGENT DOES NOT RUN")
	s.gap()
	s.row("Why", text.Line(d.Why, maxWhy))
	r := d.Record
	s.rows("Node", outstanding(r, d.Boot))
	s.rows("Reasons", reasonLines(cleanReasons(r.Reasons)))
	s.gap()
	u := Update{LastReboot: r.Last, Failure: r.Failure}.bounded()
	s.row("Last reboot", s.lastText(u.LastReboot))
	s.row("Last failure", s.failureText(u.Failure))
	s.gap()
	s.row("Next", "systemctl status kured-agent.service; journalctl -b -u kured-agent.service -u kured-agent-boot.service")
	if r.Marked {
		s.row("", "kured-agent cleanup takes taint, cordon and slot off, if the agent is to stay away")
	}
	return s.String()
}

// outstanding says what the record knows of marks in the cluster. It is a hint: the truth is the Node.
func outstanding(r plan.Record, boot string) []string {
	if !r.Marked {
		return []string{"by the record, nothing of ours is on it"}
	}
	lines := []string{"by the record, our taint or cordon may be on it"}
	if r.Slot != nil {
		lines = append(lines, "by the record, it holds slot "+text.Line(r.Slot.Name, maxName)+", which others wait for")
	}
	switch {
	case r.Boot != "" && r.Boot != boot:
		lines = append(lines, "the machine has booted since: the return is outstanding")
	case r.Asked != nil:
		lines = append(lines, "logind was asked for the reboot in this boot")
	}
	return lines
}

// headline answers the first question: is anything wrong, and who has to move?
func headline(u Update) string {
	var about string
	switch {
	case u.Phase == starting:
		about = "the agent is starting"
	case u.Unhealthy != "":
		about = "NOT HEALTHY AFTER THE REBOOT: " + u.Unhealthy
	case u.NotHelped:
		about = "THE REBOOT DID NOT HELP: the same reasons are still there"
	case u.Phase == plan.GivingUp.String():
		about = "giving up this attempt"
	case u.Phase == plan.Rebooting.String():
		about = "rebooting now"
	case u.Level == plan.Unknown:
		about = "it is not known whether a reboot is required"
	case u.Phase == plan.Returning.String():
		about = "back from a reboot, not yet given back"
	case u.Level == plan.Required && len(u.Blocked) > 0:
		about = "a reboot is required and held back"
	case u.Level == plan.Required:
		about = "a reboot is required"
	default:
		about = "no reboot is required"
	}
	if n := len(u.broken()); n > 0 {
		about += fmt.Sprintf(" (%s can't be read)", count(n, "source"))
	}
	if u.API == APIAway {
		about += " (the API server does not answer)"
	}
	if u.credentialTrouble() != "" {
		about += " (the credential needs care)"
	}
	return nodeName(u.Node) + ": " + about
}

func nodeName(name string) string {
	if name == "" {
		return "this node"
	}
	return name
}

func nodeText(u Update) string {
	switch {
	case u.API == APIAway:
		return "not known: the API server does not answer"
	case u.Tainted && u.Cordoned:
		return "tainted and cordoned by us"
	case u.Tainted:
		return "tainted, not cordoned by us"
	case u.Cordoned:
		return "cordoned by us, not tainted"
	}
	return "nothing of ours is on it"
}

func apiText(api string) string {
	switch api {
	case APIRead:
		return "answers"
	case APIAway:
		return "DOES NOT ANSWER; see Why"
	}
	return "not asked: there is nothing to ask"
}

func reasonLines(reasons []plan.Reason) []string {
	var lines []string
	for _, r := range reasons {
		line := r.ID
		if r.Text != "" && r.Text != r.ID {
			line = r.Text + " [" + r.ID + "]"
		}
		if r.Source != "" {
			line += ", says " + r.Source
		}
		if kind := r.Kind.String(); kind != "" && r.Kind != plan.KindFull {
			line += " (a " + kind + " reboot is enough)"
		}
		lines = append(lines, line)
	}
	return lines
}

// sheet collects aligned rows.
type sheet struct {
	strings.Builder
	now time.Time
}

func (s *sheet) line(text string) { s.WriteString(text + "\n") }

func (s *sheet) gap() { s.WriteByte('\n') }

func (s *sheet) row(key, text string) {
	if text == "" {
		return
	}
	s.WriteString(strings.TrimRight(fmt.Sprintf("%-14s%s", key, text), " ") + "\n")
}

func (s *sheet) rows(key string, lines []string) {
	for i, l := range lines {
		if i > 0 {
			key = ""
		}
		s.row(key, l)
	}
}

// moment is a time with its offset and its distance from now.
func (s *sheet) moment(t time.Time) string {
	text := t.In(s.now.Location()).Format("Mon 2006-01-02 15:04:05 -0700")
	if d := t.Sub(s.now); d > 0 {
		return text + ", in " + roughly(d)
	}
	return text + ", " + roughly(s.now.Sub(t)) + " ago"
}

func (s *sheet) since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " since " + s.moment(t)
}

func (s *sheet) blockedLines(u Update) []string {
	lines := u.blockedBy()
	if since := u.blockedSince(); !since.IsZero() {
		lines = append(lines, "blocked"+s.since(since))
	}
	return lines
}

// notInstalled is the note of a source that has nothing to watch on this host: there are many.
const notInstalled = "not on this host"

func (s *sheet) sourceLines(sources []SourceStatus) []string {
	var lines, resting []string
	for _, src := range sources {
		if src.Note == notInstalled {
			resting = append(resting, src.Name)
			continue
		}
		state := strings.ReplaceAll(src.Level.String(), "-", " ")
		if src.Err != "" {
			state = "CAN'T BE READ" + s.since(src.Since) + ": " + src.Err
		}
		if src.Note != "" {
			state += " (" + src.Note + ")"
		}
		lines = append(lines, src.Name+": "+state)
	}
	if len(resting) > 0 {
		lines = append(lines, notInstalled+": "+strings.Join(resting, ", "))
	}
	return lines
}

func (s *sheet) slotText(u Update) string {
	switch {
	case u.Slot != "":
		return u.Slot + " is ours" + s.since(u.SlotSince)
	case u.API == APIAway:
		return "not known: the API server does not answer"
	case u.SlotHolders != "":
		return "none; " + u.SlotHolders
	}
	return "none"
}

func (s *sheet) credentialLines(c *Credential) []string {
	if c == nil {
		return nil
	}
	line := c.Kind
	switch {
	case c.Expires.IsZero():
		line += ", does not say when it expires"
	case c.Expires.After(s.now):
		line += ", expires " + s.moment(c.Expires)
	default:
		line += ", EXPIRED " + s.moment(c.Expires)
	}
	lines := []string{line}
	if c.Renewed {
		lines = append(lines, "renewed "+s.moment(c.Issued))
	}
	if c.Note != "" {
		lines = append(lines, "not renewed by the agent: "+c.Note)
	}
	if c.Trouble != "" {
		lines = append(lines, "TROUBLE: "+c.Trouble)
	}
	return lines
}

func (s *sheet) windowText(w plan.Window) string {
	switch {
	case w.Open && w.Closes.IsZero():
		return "always open"
	case w.Open:
		return "open, closes " + s.moment(w.Closes)
	case w.Opens.IsZero():
		return "closed, and none is ahead"
	}
	return "closed, opens " + s.moment(w.Opens)
}

func (s *sheet) lastText(l *plan.LastReboot) string {
	if l == nil {
		return "none by this agent"
	}
	text := s.moment(l.At)
	if len(l.Reasons) > 0 {
		text += ": " + plan.Summary(l.Reasons)
	}
	return text
}

func (s *sheet) failureText(f *plan.Failure) string {
	switch {
	case f == nil:
		return "none"
	case f.Count > 1:
		return fmt.Sprintf("%s (%d in a row): %s", s.moment(f.At), f.Count, f.Why)
	}
	return s.moment(f.At) + ": " + f.Why
}

// roughly keeps the two largest units: 3d 4h, 2h 5m, 5m 7s, 40s.
func roughly(d time.Duration) string {
	d = d.Round(time.Second)
	days, rest := d/(24*time.Hour), d%(24*time.Hour)
	hours, rest := rest/time.Hour, rest%time.Hour
	minutes, rest := rest/time.Minute, rest%time.Minute
	switch {
	case days > 0:
		return fmt.Sprintf("%dd %dh", days, hours)
	case hours > 0:
		return fmt.Sprintf("%dh %dm", hours, minutes)
	case minutes > 0:
		return fmt.Sprintf("%dm %ds", minutes, rest/time.Second)
	}
	return fmt.Sprintf("%ds", rest/time.Second)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
