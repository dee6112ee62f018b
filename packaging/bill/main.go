// SPDX-License-Identifier: Apache-2.0

// Command bill writes what a program of ours is made of: its bill of materials (CycloneDX 1.6, JSON), and the licences
// of everything in it with their texts. Both come from the program itself, which carries the list of its modules; the
// texts are those in the module cache. The same program and SOURCE_DATE_EPOCH give the same bytes.
//
//	bill -version 0.2.0 dist/amd64/kured-agent
//
// writes kured-agent.cdx.json and kured-agent.licenses beside it. A licence that it does not know is an error.
package main

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"
)

func main() {
	version := flag.String("version", "", "version of the program")
	flag.Parse()
	if err := run(*version, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "bill:", err)
		os.Exit(1)
	}
}

func run(version, path string) error {
	if version == "" || path == "" {
		return errors.New("usage: bill -version VERSION PROGRAM")
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading what is in %q: %w", path, err)
	}
	parts, err := parts(info, version)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("reading SOURCE_DATE_EPOCH: %w", err)
	}
	bill, err := bill(parts, program, time.Unix(seconds, 0).UTC())
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path+".cdx.json", bill, 0o644),
		os.WriteFile(path+".licenses", licences(parts), 0o644))
}
