// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// licences is the list of all parts with their licences, and then every text once, with the files that it is from.
func licences(parts []part) []byte {
	var out strings.Builder
	fmt.Fprintf(&out, "What %s %s is made of, and under which licences. The texts follow the list.\n\n", parts[0].name,
		parts[0].version)
	from := map[string][]string{}
	var order []string
	for _, p := range parts {
		fmt.Fprintf(&out, "%-50s %-46s %s\n", p.name, p.version, p.expression())
		for _, f := range p.files {
			if from[f.text] == nil {
				order = append(order, f.text)
			}
			from[f.text] = append(from[f.text], p.name+"/"+f.name)
		}
	}
	for _, text := range order {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("-", 120), strings.Join(from[text], "\n"), text)
	}
	return []byte(out.String())
}

// The few objects of CycloneDX 1.6 that are needed. Their fields stand in the order in which they are written.
type (
	document struct {
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		Serial       string       `json:"serialNumber"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	}
	component struct {
		Type     string   `json:"type"`
		Ref      string   `json:"bom-ref"`
		Name     string   `json:"name"`
		Version  string   `json:"version"`
		Hashes   []hash   `json:"hashes,omitempty"`
		Licences []choice `json:"licenses"`
		URL      string   `json:"purl"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	choice struct {
		Expression string `json:"expression"`
	}
	dependency struct {
		Ref string   `json:"ref"`
		On  []string `json:"dependsOn,omitempty"`
	}
)

// bill is the bill of materials of a program of these parts, the first of which is its own module.
func bill(parts []part, program []byte, at time.Time) ([]byte, error) {
	sum := sha256.Sum256(program)
	own := parts[0].component("application")
	own.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum[:])}}
	d := document{
		Format: "CycloneDX", SpecVersion: "1.6", Serial: serial(sum), Version: 1,
		Metadata:     metadata{Timestamp: at.Format(time.RFC3339), Component: own},
		Dependencies: []dependency{{Ref: own.Ref}},
	}
	for _, p := range parts[1:] {
		c := p.component("library")
		d.Components = append(d.Components, c)
		d.Dependencies[0].On = append(d.Dependencies[0].On, c.Ref)
	}
	out, err := json.MarshalIndent(d, "", "  ")
	return append(out, '\n'), err
}

func (p part) component(kind string) component {
	url := fmt.Sprintf("pkg:golang/%s@%s", p.name, strings.ReplaceAll(p.version, "+", "%2B"))
	return component{Type: kind, Ref: url, Name: p.name, Version: p.version, URL: url,
		Licences: []choice{{p.expression()}}}
}

// serial is a name-based UUID, so that the same program has the same.
func serial(sum [sha256.Size]byte) string {
	id := sum[:16]
	id[6], id[8] = id[6]&0x0f|0x50, id[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
