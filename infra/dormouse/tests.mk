# Tests: end to end, releases side by side, what takes long

# What check leaves out: packages that need an emulator or a package index, and tests in
# other packages that need one.
EMULATED_PACKAGES := shared/store/dynamostore infra/stack infra/runner shared/box/provision
EMULATED_TESTS    := OnDynamoDB$$|ForTheBill$$|CostAtMostThis$$
LEFT_OUT := shared/store/dynamostore,_which_needs_DynamoDB_Local_(make_test) infra/stack,_which_needs_SAM_and_cfn-lint_(make_test) \
  infra/runner_and_shared/box/provision,_which_install_packages_with_npm_and_pip_(make_test) \
  tests_of_costs_on_DynamoDB_(make_test) the_race_detector_(make_test_RACE=yes) \
  most_simulated_worlds_(make_worlds) end-to-end_tests_(make_test) real_clients,_the_official_suite,_the_keeper_and_the_rest_of_.ci/steps_(.ci/run)

.PHONY: test-short
test-short: need-go
	@$(call each,go test -short -timeout 5m -skip '$(EMULATED_TESTS)' $$(go list ./... | grep -vE '/($(subst $(space),|,$(EMULATED_PACKAGES)))$$'))

# Never with the race detector, which makes them ten times as long.
WORLDS ?= 1000
.PHONY: worlds
worlds: need-go ## Simulate WORLDS (1000) worlds of each kind, and cut at every frame
	@go test -count=1 -timeout 120m -run '^Test(Simulation|SimulationOfSockets|SimulationOfRepeats|PushOnce|PauseAnything|Clocks|CutAtEveryFrame)$$' ./shared/backend/relay -sim.seeds $(WORLDS)

# What takes hours: the long forms of what .ci/run has, and what finds something only in
# the long run.
.PHONY: nightly
nightly: build ## Run what takes hours: all worlds, all end-to-end tests in every lane, every client, chaos, fuzzing
	@printf '%s\n' 'make worlds' 'make chaos DURATION=30m' 'make chaos DURATION=30m BOXES=lambda' 'make fuzz FUZZTIME=1m' 'make test-upgrade' \
	  'make test-e2e FUNCTIONS=process E2E=^TestE2E' 'make test-e2e BOXES=lambda E2E=^TestE2E' 'make test-e2e FUNCTIONS=cold E2E=^TestE2E' 'make test-clients' 'make test-servers' | .ci/beside 2

# End-to-end tests have the build tag e2e and names that begin with TestE2E. FUNCTIONS is
# where messages are handled: inside dormouse; or process, by the function programs, which
# bin/emulator/dormouse starts; or cold, inside by handlers that are made anew for each message. BOXES=lambda has the boxes
# of function programs run as invocations, as on Lambda, so it means FUNCTIONS=process.
# Outside of the first lane the tests are those that could fail only there: programs that
# read their settings and die; a box that ends or begins in the middle; a handler that
# keeps something for the next message. E2E=^TestE2E runs all.
FUNCTIONS ?= $(if $(BOXES),process,inside)
E2E_inside  := ^TestE2E
E2E_process := ^TestE2E(Socket|Soak|Native|Answer|Nothing|Workspace|Boxes)
E2E_lambda  := ^TestE2E(Talk|Cut|Soak|SessionOutlives|Answer|OneWake|Task|Killed)
E2E_cold    := ^TestE2E(Native|Answer|Task|Killed|Calls|Greedy|Soak|Talk|Cut)
E2E         ?= $(E2E_$(or $(BOXES),$(FUNCTIONS)))
.PHONY: test-e2e
test-e2e: need-go need-node need-python build ## Run the end-to-end tests: the built programs and real servers (FUNCTIONS=process or cold)
	@packages=$$(grep -rl --include='*_test.go' --exclude-dir='.[!.]*' --exclude-dir=node_modules '^//go:build .*\be2e\b' . \
	  | xargs -r -n1 dirname | sort -u || true); \
	if [ -z "$$packages" ]; then echo 'no package has end-to-end tests'; exit 0; fi; \
	skip=; if [ "$$(id -u)" != 0 ]; then skip='^TestE2EAFullDisk'; echo 'LEFT OUT: a disk that gets full, which only root can mount'; fi; \
	DORMOUSE_TEST_FUNCTIONS='$(FUNCTIONS)' DORMOUSE_TEST_BOXES='$(BOXES)' go test -count=1 -parallel 6 -timeout 20m -tags e2e -run '$(E2E)' -skip "$$skip" $$packages

# The programs of the releases in infra/stack/releases.txt are built once, into .tools.
# RELEASES=last takes only the last one.
RELEASES ?= all
.PHONY: test-upgrade
test-upgrade: need-go build ## Run functions and runners of earlier releases beside those of this one, on one table
	@DORMOUSE_TEST_RELEASES='$(RELEASES)' go test -count=1 -parallel 6 -timeout 20m -tags e2e,upgrade -run '^TestUpgrade' ./infra/dormouse

# Servers of npm and PyPI, fetched with nothing in the cache.
.PHONY: test-servers
test-servers: need-race need-node need-python build ## Run real servers (npm, PyPI), call a tool of each, measure their starts
	@go test -count=1 -v -tags e2e,servers -run '^TestServers' -timeout 20m ./infra/dormouse

# govulncheck tells of the calls that reach a known vulnerability. VULNDB names another copy
# of Go's database, such as file:///srv/vulndb where the internet is out of reach.
GOVULNCHECK_VERSION := v1.9.0
GOVULNCHECK         := $(TOOLS)/govulncheck-$(GOVULNCHECK_VERSION)/govulncheck
$(GOVULNCHECK): | need-go
	@GOBIN='$(dir $@)' GOFLAGS= GOOS= GOARCH= go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)

VULNDB ?= https://vuln.go.dev
.PHONY: vulncheck
vulncheck: $(GOVULNCHECK) ## Look for known vulnerabilities that the programs can reach (VULNDB=file:///FOLDER for a copy of the database)
	@$(call each,$(GOVULNCHECK) -db '$(VULNDB)' ./...)

# No file is for one processor only, so one stands for both; a release builds both. It
# takes minutes the first time: everything is compiled anew.
.PHONY: vet-darwin
vet-darwin: need-go ## Vet everything as it is built for macOS, and build dormouse
	@export CGO_ENABLED=0 GOOS=darwin GOARCH=arm64; go vet ./infra/... ./shared/... && go build -o /dev/null ./infra/cmd/dormouse

DURATION ?= 10m
.PHONY: chaos
chaos: need-go need-node need-python build ## Run the ten experiments and a soak test for DURATION (10m); BOXES=lambda has boxes as on Lambda
	@DORMOUSE_TEST_FUNCTIONS='$(FUNCTIONS)' DORMOUSE_TEST_BOXES='$(BOXES)' infra/local/chaos.sh '$(DURATION)'

# go test fuzzes one target at a time. Minimizing is bounded, or it would eat the
# time on a slow machine. Up to Go 1.26 a loaded machine may report the end of the time
# as a failure without an input, golang.org/issue/75804: that finds nothing.
.PHONY: fuzz
fuzz: need-go ## Fuzz every decoder for FUZZTIME (10s) each
	@grep -rHo --include='*_test.go' --exclude-dir='.[!.]*' --exclude-dir=node_modules '^func Fuzz[A-Za-z0-9_]*' . \
	  | sed 's/:func / /' | sort | while read -r file target; do \
	    echo "== $$target in $$(dirname "$$file")"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x "$$(dirname "$$file")" </dev/null 2>&1 | tee .fuzz.out \
	      || { grep -qx '    context deadline exceeded' .fuzz.out && ! grep -q 'Failing input written' .fuzz.out; } || exit 1; \
	  done

# Needs root and systemd-nspawn (Debian: systemd-container). Ends with 69 without them.
.PHONY: test-systemd
test-systemd: bin/dormouse ## Boot systemd in a container and walk docs/vps.md: units, kill, sleep, backup, HTTPS
	@infra/systemd/try.sh bin/dormouse

# Let's Encrypt's own authority for tests, and a name server.
PEBBLE_VERSION := v2.10.1
PEBBLE         := $(TOOLS)/pebble-$(PEBBLE_VERSION)
$(PEBBLE)/pebble-challtestsrv: | need-go
	@GOBIN='$(PEBBLE)' GOFLAGS= GOOS= GOARCH= go install github.com/letsencrypt/pebble/v2/cmd/pebble@$(PEBBLE_VERSION) github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv@$(PEBBLE_VERSION)

.PHONY: test-acme
test-acme: $(PEBBLE)/pebble-challtestsrv bin/dormouse ## Get a certificate from a certificate authority on this machine (dormouse run --tls)
	@DORMOUSE_TEST_PEBBLE='$(PEBBLE)' go test -count=1 -tags e2e,acme -run '^TestE2EACME' ./infra/dormouse

# Without cgo, as it is released: a sentry loads no library. Each test runs the keeper in a
# simulated task: no user namespace, the calls that container engines refuse, no capability.
.PHONY: test-keeper
test-keeper: need-go $(STAMP) ## Vet, lint and test the keeper, which runs servers from images in a kernel of their own
	@cd infra/keeper && export CGO_ENABLED=0 && go mod tidy -diff && go vet ./... && '$(LINT)' run --allow-serial-runners ./... && go test -count=1 -timeout 20m ./...

.PHONY: bench-sealed
bench-sealed: need-go need-node need-python ## Compare two reference servers with themselves sealed: start, call, memory, thaw; and a listed host with one outside of a box
	@cd infra/keeper && CGO_ENABLED=0 go test -run '^$$' -bench '^Benchmark(Sealed|ListedHost|Thaw)$$' -benchtime 10x ./dormouse-keeper
