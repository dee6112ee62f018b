// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
)

// kubereboot/kured#393: alerts that never got beyond pending held the nodes back for ever.
func TestAGateWithoutAQueryIsClosedByFiringAlertsAlone(t *testing.T) {
	t.Parallel()
	c := load(t, "config.toml", "[[gate.prometheus]]\nurl = 'https://prometheus.example'\n")
	if got := c.Gate.Prometheus[0].Query; got != `ALERTS{alertstate="firing",severity!="none"}` {
		t.Errorf("asks for %s", got)
	}
	// The example that people copy does not ask for pending ones either.
	c = load(t, "config.toml", uncomment(example(t), true))
	if got := c.Gate.Prometheus[0].Query; !strings.Contains(got, `alertstate="firing"`) {
		t.Errorf("the example asks for %s", got)
	}
}

// kubereboot/kured#174: a filter that somebody quoted once more on its way never matched.
func TestAQueryArrivesAsItIsWritten(t *testing.T) {
	t.Parallel()
	const query = `ALERTS{alertname!~"^(A|\"B\")\\d+$",x='y'} > 0`
	c := load(t, "config.toml", "[[gate.prometheus]]\nurl = 'https://prometheus.example'\nquery = '''"+query+"'''\n")
	if got := c.Gate.Prometheus[0].Query; got != query {
		t.Errorf("got %s, want %s", got, query)
	}
}
