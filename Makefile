# kured-agent. `make help` lists the targets; README.md says which two a newcomer needs.
VERSION ?= $(shell sed -n 's/^\#\# \[\([0-9][^]]*\)\].*/\1/p' CHANGELOG.md | head -n 1)
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
GOFLAGS_BUILD = -trimpath -buildvcs=false -gcflags=all=-l -ldflags '-s -w -X main.version=$(VERSION)'
GOLANGCI = go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
OVERSTEP = go test -tags integration -count 1 -v -run Overstep ./test/overstep

.PHONY: help build test test-unit test-integration lint package e2e demo bench fleet compat vuln reproduce clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

build: ## build both commands for this machine into dist/bin/
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o dist/bin/ ./cmd/...

test: test-unit test-integration ## all tests that need no booted machine (needs Go and the Debian package dbus-daemon)

test-unit: ## the first part: no API server
	go vet ./...
	go test ./...

test-integration: ## the second part: a real API server, built once from Go modules (7 minutes the first time)
	test/controlplane/build.sh
	go test -tags integration ./internal/... ./test/cluster ./test/agent ./test/overstep

lint: ## golangci-lint, pinned
	$(GOLANGCI) run ./...

package: ## deb and rpm for amd64 and arm64 in dist/
	VERSION=$(VERSION) packaging/build.sh

e2e: ## packages on booted Debian machines that really reboot (root; installs Debian packages, and says so)
	test/machines/install-deps.sh e2e
	test/controlplane/build.sh
	VERSION=$(VERSION) packaging/build.sh amd64
	go test -tags e2e -p 1 -timeout 60m -count 1 -v ./test/machines ./test/e2e

demo: ## the main job on three machines, told line by line (root; installs Debian packages, and says so)
	test/machines/install-deps.sh demo
	test/controlplane/build.sh
	VERSION=$(VERSION) packaging/build.sh amd64 deb
	go run ./test/demo

bench: ## memory, size, latency and request figures against their targets
	test/controlplane/build.sh
	VERSION=$(VERSION) packaging/build.sh amd64 deb
	go test -tags bench -timeout 30m -count 1 -v -run TestFigures ./test/bench

fleet: ## the double drain, 5,000 waiting agents and a million schedules, counted (14 minutes)
	test/controlplane/build.sh
	go test -tags fleet -timeout 5m -count 1 -v -run 'Schedule' ./internal/slot
	go test -tags fleet -timeout 15m -count 1 -v -parallel 2 ./test/fleet

compat: ## the cluster's side on API servers of 1.30 to 1.33, built once from Go modules (10 minutes the first time)
	test/controlplane/build.sh
	KURED_AGENT_APISERVER=$$(test/controlplane/older.sh 1.30.14) KURED_AGENT_APISERVER_VERSIONS=1.30 $(OVERSTEP)
	KURED_AGENT_APISERVER=$$(test/controlplane/older.sh 1.33.13) KURED_AGENT_APISERVER_VERSIONS='1.31 1.32 1.33' $(OVERSTEP)

vuln: ## known vulnerabilities that the programs reach (needs a network)
	test/vuln.sh

reproduce: ## build the packages twice, as two strangers would, and compare the bytes
	VERSION=$(VERSION) packaging/reproduce.sh

clean: ## remove what was built here (caches stay)
	rm -rf dist
