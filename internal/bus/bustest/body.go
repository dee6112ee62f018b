// SPDX-License-Identifier: Apache-2.0

package bustest

import "github.com/godbus/dbus/v5"

// Body makes the body of a message from the bytes of a fuzzer: any values of any types as godbus decodes them, nested,
// down to none at all.
func Body(data []byte) []any {
	s := &source{data}
	body := make([]any, 0, 4)
	for range s.next() % 5 {
		body = append(body, s.value(0))
	}
	return body
}

type source struct{ data []byte }

func (s *source) next() byte {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return b
}

func (s *source) text() string {
	n := min(int(s.next()), len(s.data))
	text := string(s.data[:n])
	s.data = s.data[n:]
	return text
}

func (s *source) number() uint64 {
	var n uint64
	for range s.next() % 9 {
		n = n<<8 | uint64(s.next())
	}
	return n
}

// value is one complete D-Bus value; deep ones end in a number.
func (s *source) value(depth int) any {
	kind := s.next() % 20
	if depth < 4 {
		if v := s.container(kind, depth+1); v != nil {
			return v
		}
	}
	switch kind {
	case 0, 1, 2:
		return s.text()
	case 3:
		return dbus.ObjectPath(s.text())
	case 4:
		return s.next()%2 == 1
	case 5:
		return s.next()
	case 6:
		return int32(s.number())
	case 7:
		return int64(s.number())
	case 8:
		return float64(s.number())
	case 9:
		return dbus.UnixFDIndex(s.number())
	case 10, 11, 12:
		return uint32(s.number())
	}
	return s.number()
}

func (s *source) container(kind byte, depth int) any {
	switch kind {
	case 14:
		return dbus.MakeVariantWithSignature(s.value(depth), dbus.SignatureOf(""))
	case 15:
		return s.list(depth) // a structure
	case 16, 17: // an array of structures
		all := [][]any{}
		for range s.next() % 4 {
			all = append(all, s.list(depth))
		}
		return all
	case 18:
		all := []string{}
		for range s.next() % 4 {
			all = append(all, s.text())
		}
		return all
	case 19:
		all := map[string]dbus.Variant{}
		for range s.next() % 4 {
			all[s.text()] = dbus.MakeVariantWithSignature(s.value(depth), dbus.SignatureOf(""))
		}
		return all
	}
	return nil
}

func (s *source) list(depth int) []any {
	fields := []any{}
	for range s.next() % 12 {
		fields = append(fields, s.value(depth))
	}
	return fields
}
