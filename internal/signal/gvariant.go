// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// vardict is a serialized GVariant of type a{sv}, as GLib programs write it into files: the keys with the values still
// serialized. It is not what travels on a bus: strings have no length, the ends of the parts stand behind them.
type vardict map[string]variant

// variant is a value: its type in GLib's notation, and its bytes.
type variant struct {
	kind string
	data []byte
}

var errVardict = errors.New("not a serialized dictionary of GLib")

// parseVardict takes bytes whose first one is aligned to 8, as in a file. Of a key that is there twice the last counts.
func parseVardict(b []byte) (vardict, error) {
	ends, err := elementEnds(b)
	if err != nil {
		return nil, err
	}
	dict := vardict{}
	start := 0
	for _, end := range ends {
		start = align(start)
		if start > end {
			return nil, errVardict
		}
		key, value, err := parseEntry(b[start:end])
		if err != nil {
			return nil, err
		}
		dict[key] = value
		start = end
	}
	return dict, nil
}

// elementEnds reads the table at the end of an array: where each element ends. Its last entry is also where the table
// begins.
func elementEnds(b []byte) ([]int, error) {
	if len(b) == 0 {
		return nil, nil
	}
	size := offsetSize(len(b))
	table, ok := offset(b, len(b)-size, size)
	if !ok || table > len(b)-size || (len(b)-table)%size != 0 {
		return nil, errVardict
	}
	var ends []int
	for at := table; at < len(b); at += size {
		end, _ := offset(b, at, size)
		if end > table {
			return nil, errVardict
		}
		ends = append(ends, end)
	}
	return ends, nil
}

// parseEntry reads one {sv}: the key with its zero, padding, the value, and where the key ends.
func parseEntry(b []byte) (string, variant, error) {
	size := offsetSize(len(b))
	last := len(b) - size
	end, ok := offset(b, last, size)
	if !ok || end < 1 || end > last || b[end-1] != 0 || align(end) > last {
		return "", variant{}, errVardict
	}
	value := b[align(end):last]
	mark := bytes.LastIndexByte(value, 0)
	if mark < 0 {
		return "", variant{}, errVardict
	}
	return string(b[:end-1]), variant{kind: string(value[mark+1:]), data: value[:mark]}, nil
}

// offsetSize is how many bytes an offset takes in a container of a length.
func offsetSize(length int) int {
	switch {
	case length <= 0xff:
		return 1
	case length <= 0xffff:
		return 2
	}
	return 4
}

func offset(b []byte, at, size int) (int, bool) {
	if at < 0 || at+size > len(b) {
		return 0, false
	}
	var wide [4]byte
	copy(wide[:], b[at:at+size])
	return int(binary.LittleEndian.Uint32(wide[:])), true
}

func align(n int) int { return (n + 7) &^ 7 }

// text returns a value of type s.
func (v variant) text() (string, bool) {
	s, ok := bytes.CutSuffix(v.data, []byte{0})
	return string(s), ok && v.kind == "s"
}

// flag returns a value of type b.
func (v variant) flag() (value, ok bool) {
	if v.kind != "b" || len(v.data) != 1 || v.data[0] > 1 {
		return false, false
	}
	return v.data[0] == 1, true
}

// dict returns a value of type a{sv}.
func (v variant) dict() (vardict, error) {
	if v.kind != "a{sv}" {
		return nil, errVardict
	}
	return parseVardict(v.data)
}
