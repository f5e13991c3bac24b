# Dormouse. `make help` lists the targets.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-print-directory

# Pinned once. A change of version installs it anew.
GOLANGCI_LINT_VERSION := v2.15.0

TOOLS := $(CURDIR)/.tools
LINT  := $(TOOLS)/bin/golangci-lint
STAMP := $(TOOLS)/golangci-lint-$(GOLANGCI_LINT_VERSION).installed

# One static program per function, and the programs of infra.
GO_BUILD := CGO_ENABLED=0 go build -trimpath -tags lambda.norpc -ldflags '-s -w'
PROGRAMS := dormouse emulator/dormouse runner $(patsubst functions/%/main.go,%,$(wildcard functions/*/main.go))

# The Go modules: the product, and the proof (benchmarks, real clients, the official
# suite, costs), which the product must not depend on. Both are checked alike.
MODULES := . infra/proof
, := ,
space := $(subst x,,x x)
each = for module in $(MODULES); do ( cd $$module && $(1) ) || exit; done

# What a caller may set: make run ARGS='--listen 127.0.0.1:9000', make fuzz FUZZTIME=5m.
ARGS     ?=
FUZZTIME ?= 10s
BENCH    ?= .

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: need-servers bin/dormouse ## Host the servers of servers.json on this machine (ARGS='--help' for its settings)
	@exec bin/dormouse run $(ARGS)

.PHONY: build
build: $(addprefix bin/,$(PROGRAMS)) ## Build all programs into bin/

# The go command knows best what is up to date, so it is always asked.
.PHONY: force
bin/dormouse: force need-go
	@$(GO_BUILD) -o $@ ./infra/cmd/dormouse
bin/emulator/dormouse: force need-go
	@$(GO_BUILD) -o $@ ./infra/internal/emulator/dormouse
bin/runner: force need-go
	@$(GO_BUILD) -o $@ ./infra/runner/cmd
bin/%: force need-go
	@$(GO_BUILD) -o $@ ./functions/$*

# Runs targets one after the other, each timed. The first that fails ends it.
parts = for part in $(1); do \
    echo "== $$part"; begin=$$SECONDS; \
    $(MAKE) $$part || { echo "== $$part failed after $$((SECONDS - begin)) s"; exit 1; }; \
    echo "== $$part passed in $$((SECONDS - begin)) s"; \
  done

# docs/testing.md says what each tier proves and needs.
.PHONY: check
check: ## Check before each commit, in a minute and a half: unit tests without emulators, lint
	@$(call parts,test-short vet lint)
	@printf 'LEFT OUT: %s\n' $(foreach part,$(LEFT_OUT),'$(subst _, ,$(part))')

# End-to-end tests wait more than they compute, so unit tests run beside them.
.PHONY: test
test: need-race need-node need-python build ## Check before a change goes in: unit tests, vet, end-to-end tests (RACE=yes has the race detector look)
	@printf '%s\n' 'make test-unit' 'make test-e2e' 'make vet' | .ci/beside 2
	@printf 'LEFT OUT, .ci/run has it: %s\n' 'the linters (make lint)' 'real clients (make test-clients)' 'the official suite (make conformance)' \
	  'function programs and handlers that are made anew, end to end (make test-e2e FUNCTIONS=process, FUNCTIONS=cold)' \
	  'the stack (make check-stack, bench-cold, sam-local)' 'the image of the boxes (make test-image)' $(if $(RACE),,'the race detector (make test RACE=yes)')
	@printf 'LEFT OUT, make nightly has it: %s\n' 'nine of ten simulated worlds, chaos, fuzzing'

# What check leaves out: packages that need an emulator or a package index, and tests in
# other packages that need one.
EMULATED_PACKAGES := shared/store/dynamostore infra/stack infra/runner shared/box/provision
EMULATED_TESTS    := OnDynamoDB$$|ForTheBill$$|CostsAtMostThis$$|CostAtMostThis$$|^TestMoto
LEFT_OUT := shared/store/dynamostore,_which_needs_DynamoDB_Local_(make_test) infra/stack,_which_needs_SAM_and_cfn-lint_(make_test) \
  infra/runner_and_shared/box/provision,_which_install_packages_with_npm_and_pip_(make_test) \
  tests_of_costs_on_DynamoDB_and_of_tasks_in_moto_(make_test) the_race_detector_(make_test_RACE=yes) \
  most_simulated_worlds_(make_worlds) end-to-end_tests_(make_test) real_clients_and_the_official_suite_(.ci/run)

.PHONY: test-short
test-short: need-go
	@$(call each,go test -short -timeout 5m -skip '$(EMULATED_TESTS)' $$(go list ./... | grep -vE '/($(subst $(space),|,$(EMULATED_PACKAGES)))$$'))

# RACE=yes runs the unit tests with the race detector, as .ci/run does. It needs a C compiler,
# and makes them take twice as long. End-to-end tests run programs, which are built without
# it. A program with the race detector sleeps for a second before it exits, unless it is told
# not to.
RACE ?=
TEST := $(if $(RACE),GORACE=atexit_sleep_ms=0 go test -race,go test)

# Tests wait more than they compute, so more of them run at a time than there are processors.
.PHONY: test-unit
test-unit: need-race ## Run the unit tests (few simulated worlds)
	@$(call each,$(TEST) -p 4 -timeout 20m ./...)

# Never with the race detector, which makes them ten times as long.
WORLDS ?= 1000
.PHONY: worlds
worlds: need-go ## Simulate WORLDS (1000) worlds of each kind, and cut at every frame
	@go test -count=1 -timeout 120m -run '^Test(Simulation|SimulationOfSockets|SimulationOfAPlaceThatDoesNotList|PushOnce|PauseAnything|Clocks|Operators|Neighbours|CutAtEveryFrame)$$' ./shared/backend/relay -sim.seeds $(WORLDS) -neighbours $(WORLDS)

# What takes hours: the long forms of what .ci/run has, and what finds something only in
# the long run.
.PHONY: nightly
nightly: build ## Run what takes hours: all worlds, all end-to-end tests in every lane, every client, chaos, fuzzing
	@printf '%s\n' 'make worlds' 'make chaos DURATION=30m' 'make chaos DURATION=30m BOXES=lambda' 'make fuzz FUZZTIME=1m' 'make test-upgrade' \
	  'make test-e2e FUNCTIONS=process E2E=^TestE2E' 'make test-e2e BOXES=lambda E2E=^TestE2E' 'make test-e2e FUNCTIONS=cold E2E=^TestE2E' 'make test-clients' 'make test-servers' | .ci/beside 2

# Nothing of it fails because of what it measures.
.PHONY: shape
shape: need-go ## Measure the shape of the code: lines, methods on one state, references back, arrows, long functions, knobs
	@cd infra/proof && go run ./shape ../..

# End-to-end tests have the build tag e2e and names that begin with TestE2E. FUNCTIONS is
# where messages are handled: inside dormouse; or process, by the function programs, which
# bin/emulator/dormouse starts; or cold, inside by handlers that are made anew for each message. BOXES=lambda has the boxes
# of function programs run as invocations, as on Lambda, so it means FUNCTIONS=process.
# Outside of the first lane the tests are those that could fail only there: programs that
# read their settings and die; a box that ends or begins in the middle; a handler that
# keeps something for the next message. E2E=^TestE2E runs all.
FUNCTIONS ?= $(if $(BOXES),process,inside)
E2E_inside  := ^TestE2E
E2E_process := ^TestE2E(Socket|OneWebSocket|Relay|EveryCallEnds|CallCanBe|Native|Answer|Handshake|KeysLet|Upstream|Users|Functions|LogLines|OneAddress|Nothing|Workspace|Remote|Refusals|Boxes)
E2E_lambda  := ^TestE2E(Talk|Cut|CallsEnd|SessionOutlives|Modern|MessageRight|OneWake|Task|Killed)
E2E_cold    := ^TestE2E(Socket|Native|Question|Handshake|Modern|Task|Suspended|Killed|Calls|Greedy|Soak|Talk|Cut|Bill|Keys)
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

.PHONY: test-clients
test-clients: need-go need-node need-python need-mvn build ## Run real clients (TypeScript, Python, Go, Java) against Dormouse
	@cd infra/proof && go test -count=1 -parallel 4 -v -tags clients -timeout 40m ./clients/...

.PHONY: test-browser
test-browser: need-go need-node build ## Sign in with a real browser (Chromium on the PATH, or DORMOUSE_TEST_BROWSER)
	@cd infra/proof && go test -count=1 -v -tags clients,browser -run '^TestABrowserSignsIn$$' ./clients

# DORMOUSE_SHOTS=FOLDER keeps the screenshots.
.PHONY: test-console
test-console: need-node build ## Look at the console in a real browser (Chromium from npm, or DORMOUSE_TEST_BROWSER)
	@cd infra/proof && go test -count=1 -v -tags browser -run '^TestConsole' ./console

.PHONY: test-idp
test-idp: need-go need-node need-python need-mvn build ## Sign in at a Keycloak, which Maven fetches once (160 MB), with every client
	@cd infra/proof && go test -count=1 -v -tags clients,keycloak -run '^TestRealClientsSignInWithKeycloak$$' -timeout 20m ./clients

# Cargo builds the Rust clients once, which takes minutes. PAGE= leaves infra/proof/clients/results.md as it is.
# COLUMNS='/mcp,remote' runs these columns; the table keeps the others.
PAGE ?= 1
.PHONY: matrix
matrix: need-go need-node need-python need-cargo need-mvn build ## Run every client against servers of each era, and releases of two years; write the tables of infra/proof/clients/results.md
	@cd infra/proof && DORMOUSE_MATRIX_PAGE='$(PAGE)' DORMOUSE_MATRIX_COLUMNS='$(if $(filter command line,$(origin COLUMNS)),$(COLUMNS))' go test -count=1 -v -tags clients,matrix -run '^Test(Matrix|Releases|ReferenceServerPassesEveryClient)$$' -timeout 60m ./clients

# Eight servers of npm and PyPI, fetched with nothing in the cache.
.PHONY: test-servers
test-servers: need-race need-node need-python build ## Run real servers (npm, PyPI), call a tool of each, measure their starts
	@go test -count=1 -v -tags e2e,servers -run '^TestServers' -timeout 20m ./infra/dormouse

# LANE=2025-11-25 runs the lanes of one requirement set, LANE=2025-11-25/legacy one.
.PHONY: conformance
conformance: need-go need-node build ## Run the official conformance suite through the relay (LANE= for some of it)
	@cd infra/proof && go test -count=1 -v -tags conformance -run '$(if $(LANE),TestOfficialSuitePasses/$(LANE),.)' ./conformance

.PHONY: lint
lint: need-go $(STAMP) ## Run the linters
	@$(call each,$(LINT) run --allow-serial-runners ./...)

.PHONY: vet
vet: need-go
	@$(call each,go mod tidy -diff && go vet -tags e2e$(,)clients$(,)matrix$(,)browser$(,)keycloak$(,)conformance$(,)servers$(,)image$(,)release$(,)acme$(,)upgrade$(,)walk$(,)samlocal$(,)cold$(,)engine ./...)
	@go vet -tags aws ./functions/...

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

.PHONY: fmt
fmt: need-go $(STAMP) ## Format all Go files
	@$(call each,$(LINT) fmt ./...)

DURATION ?= 10m
.PHONY: chaos
chaos: need-go need-node need-python build ## Run the eleven experiments and a soak test for DURATION (10m); BOXES=lambda has boxes as on Lambda
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

# PART='latency,wake' PEERS='dormouse,supergateway' SERVER=everything SCALE=0.5; OUT is for
# results.json, PUBLISH for the table and the plots. infra/proof/bench/doc.go says what is measured.
ROUNDS  ?= 3
OUT     ?= .bench
.PHONY: bench
bench: need-go build ## Measure Dormouse beside what users would pick instead (PART= PEERS= ROUNDS=3)
	@cd infra/proof && go build -o '$(TOOLS)/bench/bench' ./bench
	@'$(TOOLS)/bench/bench' -rounds $(ROUNDS) -out '$(OUT)' $(if $(PART),-part '$(PART)') $(if $(PEERS),-peers '$(PEERS)') \
	  $(if $(SERVER),-server '$(SERVER)') $(if $(SCALE),-scale '$(SCALE)') $(if $(PUBLISH),-publish '$(PUBLISH)')

.PHONY: bench-native
bench-native: need-go ## Compare a call of a native server with go-sdk's own handler, and with what sleeping servers are answered: medians and their ratio
	@go test -run '^$$' -bench '^Benchmark(Rebuilt|Sleeping)$$' -benchtime 5s ./shared/backend/native | grep -v '^{'

# Needs root on Linux: a cgroup limits the box to the processor share of a Lambda function.
.PHONY: bench-wake
bench-wake: need-go need-node build ## Measure wakes at the processor shares of 512 MB and 1 GB beside plain starts (ROUNDS=30)
	@cd infra/proof && go build -o '$(CURDIR)/bin/wake' ./wake
	@bin/wake -rounds $(if $(filter file,$(origin ROUNDS)),30,$(ROUNDS))

# What benchstat compares: make bench-go > new.txt && benchstat infra/proof/bench/baseline.txt new.txt
COUNT ?= 6
.PHONY: bench-go
bench-go: need-go ## Run the Go benchmarks of the hot path, for benchstat (BENCH='Parse' for some, COUNT=6)
	@go test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime 200ms -count $(COUNT) ./shared/core/wire ./shared/backend/relay ./shared/core/frame ./shared/backend/relayserver ./shared/store/sqlitestore ./shared/store/dynamostore

.PHONY: profile
profile: ## Take CPU profiles of every program under load, print their first lines
	@$(MAKE) bench PART=profile ROUNDS=1 PEERS='$(if $(PEERS),$(PEERS),dormouse)'

# The operations are counted anew, with the real driver against DynamoDB Local; then
# they are money. COST='-prices FILE' takes other prices.
.PHONY: bench-cost
bench-cost: need-go ## Print what each operation, silence and a month of calls cost on AWS, and elsewhere
	@go test -count=1 -run '^TestCountsForTheBill$$' ./shared/backend/relay -counts '$(CURDIR)/bin/cost/operations.json'
	@cd infra/proof && go build -o '$(CURDIR)/bin/cost/cost' ./cost
	@bin/cost/cost $(COST)

.PHONY: docs
docs: need-go ## Write the tables of docs/costs.md anew
	@go test -count=1 -run '^TestCostsInTheDocumentsAreThose$$' ./shared/backend/relay -update
	@go test -count=1 -run '^TestCostOfNativeServers$$' ./shared/backend/native -update

# The tools of the site, by their hashes. Another requirements.txt makes another folder.
SITE := $(TOOLS)/site-$(shell cksum <infra/site/requirements.txt | cut -d ' ' -f 1)
$(SITE)/bin/mkdocs: | need-python
	@rm -rf '$(SITE)' && python3 -m venv '$(SITE)' && '$(SITE)/bin/pip' install -q --disable-pip-version-check --require-hashes -r infra/site/requirements.txt

.PHONY: site
site: $(SITE)/bin/mkdocs ## Build the site from docs/ into bin/site; a link or an anchor that leads nowhere ends it
	@NO_MKDOCS_2_WARNING=1 '$(SITE)/bin/mkdocs' build --strict --config-file infra/site/mkdocs.yml

# It takes three minutes, until the server is asleep; the address must be free.
.PHONY: pictures
pictures: need-go need-node bin/dormouse ## Record docs/two-minutes.svg, the animated picture of README.md
	@cd infra/proof && go run ./picture

.PHONY: first-run
first-run: need-go need-node ## Measure what a new user waits for: clone, build, URL, first tool result
	@infra/local/first-run.sh

.PHONY: clean
clean: ## Remove what was built; sessions (.dormouse) and tools (.tools) stay
	@rm -rf bin .aws-sam

$(STAMP): | need-go
	@echo 'installing golangci-lint $(GOLANGCI_LINT_VERSION) into .tools/bin: takes a few minutes, once'
	@GOBIN='$(TOOLS)/bin' GOFLAGS= GOOS= GOARCH= go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	@rm -f '$(TOOLS)'/golangci-lint-*.installed
	@touch '$@'

# What must be on this machine, said in a sentence before something else fails.
.PHONY: need-go need-race need-node need-python need-cargo need-mvn need-servers
need-go:
	@command -v go >/dev/null || { echo 'go is not on the PATH: install Go 1.26 or newer, see https://go.dev/dl' >&2; exit 1; }

need-race: need-go
ifneq ($(RACE),)
	@cc=$$(go env CC); command -v "$${cc%% *}" >/dev/null || { echo "the race detector needs the C compiler $$cc, which is not on the PATH: install gcc" >&2; exit 1; }
	@[ "$$(go env CGO_ENABLED)" = 1 ] || { echo 'the race detector needs cgo: unset CGO_ENABLED or set it to 1' >&2; exit 1; }
endif

need-node:
	@for program in node npx; do command -v $$program >/dev/null || { echo "$$program is not on the PATH: install Node.js 20 or newer, see https://nodejs.org" >&2; exit 1; }; done

need-python:
	@command -v python3 >/dev/null || { echo 'python3 is not on the PATH: install Python 3.10 or newer' >&2; exit 1; }

need-cargo:
	@command -v cargo >/dev/null || { echo 'cargo is not on the PATH: install Rust 1.90 or newer, see https://rustup.rs' >&2; exit 1; }

need-mvn:
	@for program in mvn java; do command -v $$program >/dev/null || { echo "$$program is not on the PATH: install Maven and a JDK of 17 or newer" >&2; exit 1; }; done

# Only the servers.json that comes with Dormouse needs Node.
need-servers:
ifeq ($(findstring --servers,$(ARGS))$(findstring --help,$(ARGS)),)
	@if grep -qs '"npx"' servers.json; then for program in node npx; do command -v $$program >/dev/null || { \
	  echo "$$program is not on the PATH, but servers.json starts a server with npx: install Node.js 20 or newer (https://nodejs.org), or name another file with ARGS='--servers FILE'" >&2; exit 1; }; done; fi
endif

# ---- AWS

# The processor of functions and boxes, arm64 or x86_64, and the section of samconfig.toml.
ARCH   ?= arm64
CONFIG ?= default

AWS_GOARCH := $(if $(filter x86_64,$(ARCH)),amd64,arm64)
AWS_BUILD  := CGO_ENABLED=0 GOOS=linux GOARCH=$(AWS_GOARCH) go build -trimpath -ldflags '-s -w'
SAM        := $(TOOLS)/sam/aws-sam-cli-1.170.0-cfn-lint-1.58.0/bin/sam
export SAM_CLI_TELEMETRY ?= 0

# What sam build calls (BuildMethod: makefile in template.yaml).
# http and socket are built from the program in the folder GO_SERVERS, if there is one. sam
# builds in a copy of this folder, so its make gets the absolute path.
GO_SERVERS           ?=
export GO_SERVERS_AT := $(or $(GO_SERVERS_AT),$(if $(GO_SERVERS),$(abspath $(GO_SERVERS))))
build-HttpFunction build-SocketFunction: OWN = $(GO_SERVERS_AT)
build-HttpFunction build-SocketFunction build-RelayFunction build-SweepFunction build-OauthFunction build-ConsoleFunction: build-%Function: need-go
	@cd '$(or $(OWN),.)' && $(AWS_BUILD) -tags lambda.norpc,aws -o '$(ARTIFACTS_DIR)/bootstrap' $(if $(OWN),.,./functions/$$(tr A-Z a-z <<<'$*'))
	@cp servers.json '$(ARTIFACTS_DIR)/'

# The tests of infra/stack install it.
$(SAM): | need-python
	@go test -count=1 -run '^TestTheTemplateIsValid$$' ./infra/stack

.PHONY: sam-build
sam-build: $(SAM) ## Build the functions for AWS into .aws-sam (ARCH=x86_64 for the other processor)
	@$(SAM) build --config-env $(CONFIG) $(if $(filter x86_64,$(ARCH)),--parameter-overrides Architecture=x86_64)

# The functions as they are deployed, for this machine's processor. Ends with 69 where
# there is no Docker engine and none can be started.
LOCAL_ARCH := $(if $(filter aarch64 arm64,$(shell uname -m)),arm64,x86_64)

.PHONY: sam-local
sam-local: need-go $(SAM) ## Send every file of events/ through sam local invoke (needs Docker, or root to start it)
	@ARCH=$(LOCAL_ARCH) AWS_DEFAULT_REGION=us-east-1 $(SAM) build --build-dir .aws-sam/local --parameter-overrides Architecture=$(LOCAL_ARCH) >/dev/null
	@go test -count=1 -tags samlocal -run '^TestSAMLocalIsPrepared$$' ./infra/stack
	@infra/stack/engine.sh infra/stack/samlocal.sh $(SAM)

.PHONY: check-stack
check-stack: need-go $(SAM) ## Build the functions for AWS, and walk docs/aws against an emulator
	@AWS_DEFAULT_REGION=us-east-1 ARCH=$(ARCH) $(SAM) build --build-dir .aws-sam/check $(if $(filter x86_64,$(ARCH)),--parameter-overrides Architecture=x86_64) >/dev/null
	@ls -l .aws-sam/check/*/bootstrap | awk '{ printf "%s: %.1f MB\n", $$9, $$5 / 1e6 }'
	@$(MAKE) walk-stack

.PHONY: bench-cold
bench-cold: need-go ## Measure cold starts and sizes of the functions as they are deployed
	@go test -count=1 -v -tags cold -run '^TestColdStarts$$' ./infra/stack

# Without ARCH a stack keeps the processor it has. ARGS='NAME=VALUE ...' are parameters of
# template.yaml, besides those of samconfig.toml; FORCE=1 deploys what the doctor refuses.
STACK := go run ./infra/stack/deploy -sam $(SAM) -config $(CONFIG)

.PHONY: deploy
deploy: need-go $(SAM) bin/dormouse ## Deploy to AWS with the image of the boxes (CONFIG=dev or prod for others in samconfig.toml; GO_SERVERS=FOLDER for a program with servers in Go; ROLLBACK=15 has alarms roll it back for 15 minutes)
	@$(STACK) $(if $(filter-out file,$(origin ARCH)),-arch $(ARCH)) $(if $(FORCE),-force) $(if $(YES),-yes) $(if $(ROLLBACK),-rollback '$(ROLLBACK)') up $(ARGS)

.PHONY: doctor
doctor: need-go ## Say what would fail in a deployment to AWS; needs rights to read only
	@$(STACK) doctor $(ARGS)

.PHONY: boxes
boxes: need-go bin/dormouse ## Deploy boxes as Lambda functions beside the stack, in one of their own, with their image
	@$(STACK) boxes

.PHONY: delete
delete: need-go $(SAM) ## Stop the boxes and delete the stack, once you type its name; table and bucket stay (PURGE=1 deletes them too, YES=1 asks nothing)
	@$(STACK) $(if $(PURGE),-purge) $(if $(YES),-yes) down

.PHONY: restore
restore: need-go ## Restore the stack's table as it was at AT (a time such as 2026-11-23T12:00:00Z, or now) beside it
	@$(STACK) restore $(if $(AT),AT=$(AT))

.PHONY: logs
logs: need-go $(SAM) ## Follow the logs of the stack
	@$(STACK) logs

.PHONY: runner-aws
runner-aws: need-go
	@mkdir -p bin/linux-$(AWS_GOARCH)
	@$(AWS_BUILD) -tags aws -o bin/linux-$(AWS_GOARCH)/runner ./infra/runner/cmd

# crane puts images together without a Docker engine.
CRANE_VERSION := v0.22.1
CRANE         := $(TOOLS)/crane-$(CRANE_VERSION)/crane
$(CRANE): | need-go
	@GOBIN='$(dir $@)' GOFLAGS= GOOS= GOARCH= go install github.com/google/go-containerregistry/cmd/crane@$(CRANE_VERSION)

# Types both ways to deploy, an upgrade and a deletion in a copy of the clone, with the real
# make, sam, aws, crane and dormouse.
.PHONY: walk-stack
walk-stack: need-go $(SAM) $(CRANE) ## Walk docs/aws/deploy.md against an emulator of AWS
	@DORMOUSE_TEST_CRANE=$(CRANE) go test -count=1 -tags walk -timeout 30m -run '^Test(ASecurityTeamsGatePasses|AStrangersWalk|GuidedDeploymentTakesEnterOnly|ProdIsDeployedOnceItIsConfirmed)$$' ./infra/stack

# make deploy calls it. IMAGE is the RepositoryUri of the stack's outputs and a tag that
# is not there yet; RunnerImage then names it. LOCKS is a folder of locks, such
# as cache/locks of a machine where the servers were installed: boxes install the same bytes.
# BAKE= leaves the servers of SERVERS out of the image.
SERVERS ?= servers.json
BAKE    ?= 1
.PHONY: image
image: runner-aws bin/dormouse need-python $(CRANE) ## Push the image of the boxes, with the servers of servers.json installed, without Docker (IMAGE=REPOSITORY:TAG LOCKS=FOLDER BAKE=; password of user AWS on stdin)
	@[ -n '$(IMAGE)' ] || { echo 'want IMAGE=REPOSITORY:TAG, the RepositoryUri of the stack: aws ecr get-login-password | make image IMAGE=...:mine' >&2; exit 1; }
	@$(if $(BAKE),bin/dormouse image --servers '$(SERVERS)' --out bin/baked --platform linux/$(AWS_GOARCH) </dev/null >&2)
	@LOCKS='$(LOCKS)' BAKED='$(if $(BAKE),bin/baked)' infra/image/push.sh $(CRANE) bin/linux-$(AWS_GOARCH)/runner linux/$(AWS_GOARCH) '$(IMAGE)'

.PHONY: test-image
test-image: runner-aws need-python need-node $(CRANE) build ## Push images of boxes to a registry in memory, and look at them
	@DORMOUSE_TEST_CRANE=$(CRANE) go test -count=1 -tags image ./infra/image

# The image of one machine, for Docker and its like. IMAGE is REPOSITORY:TAG, to which
# docker login or crane auth login has logged in; or a file for docker load, such as
# dormouse.tar, with PLATFORMS=linux/amd64.
PLATFORMS ?= linux/amd64 linux/arm64
.PHONY: image-local
image-local: need-go need-python $(CRANE) ## Push the image of one machine, without Docker (IMAGE=REPOSITORY:TAG, or a FILE.tar with PLATFORMS=linux/amd64)
	@[ -n '$(IMAGE)' ] || { echo 'want IMAGE=REPOSITORY:TAG, or IMAGE=dormouse.tar PLATFORMS=linux/amd64' >&2; exit 1; }
	@for platform in $(PLATFORMS); do GOOS=$${platform%/*} GOARCH=$${platform#*/} $(GO_BUILD) -o "bin/$${platform/\//-}/dormouse" ./infra/cmd/dormouse; done
	@infra/image/machine.py $(CRANE) '$(IMAGE)' $(foreach platform,$(PLATFORMS),$(platform)=bin/$(subst /,-,$(platform))/dormouse)

# Needs Node and curl, which it puts into the base of its image. Ends with 69 where there
# is no Docker engine and none can be started.
.PHONY: test-container
test-container: need-node need-python $(CRANE) bin/dormouse ## Run the image of one machine (needs Docker, or root to start it)
	@go vet -tags image,engine ./infra/image
	@DORMOUSE_TEST_CRANE=$(CRANE) infra/stack/engine.sh go test -count=1 -tags image,engine -run '^TestAContainer' ./infra/image

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

# ---- Releases

# From v2.17 goreleaser needs a module that the proxy does not give to everybody, and from
# v2.18 a newer Go than ours.
GORELEASER_VERSION := v2.16.0
SYFT_VERSION       := v1.57.0
COSIGN_VERSION     := v3.1.3
GORELEASER         := $(TOOLS)/goreleaser-$(GORELEASER_VERSION)/goreleaser
SYFT               := $(TOOLS)/syft-$(SYFT_VERSION)/syft
COSIGN             := $(TOOLS)/cosign-$(COSIGN_VERSION)/cosign
$(GORELEASER): | need-go
	@echo 'installing goreleaser $(GORELEASER_VERSION) into .tools: takes minutes, once'
	@GOBIN='$(dir $@)' GOFLAGS= GOOS= GOARCH= go install github.com/goreleaser/goreleaser/v2@$(GORELEASER_VERSION)
$(SYFT): | need-go
	@echo 'installing syft $(SYFT_VERSION) into .tools: takes minutes, once'
	@GOBIN='$(dir $@)' GOFLAGS= GOOS= GOARCH= go install github.com/anchore/syft/cmd/syft@$(SYFT_VERSION)
$(COSIGN): | need-go
	@GOBIN='$(dir $@)' GOFLAGS= GOOS= GOARCH= go install github.com/sigstore/cosign/v3/cmd/cosign@$(COSIGN_VERSION)

.PHONY: release-check
release-check: $(GORELEASER) ## Check .goreleaser.yaml
	@$(GORELEASER) check --quiet

# Nothing is signed: a keyless signature needs the workflow's identity.
.PHONY: release-snapshot
release-snapshot: release-check $(SYFT) ## Make the archives, checksums, SBOMs and cask of a release in bin/release, unsigned
	@PATH='$(dir $(SYFT))':"$$PATH" $(GORELEASER) release --snapshot --clean --skip=sign

.PHONY: test-release
test-release: release-snapshot ## Make a release, and run its archive in an empty folder
	@DORMOUSE_TEST_RELEASE='$(CURDIR)/bin/release' go test -count=1 -tags release ./infra/image

# .github/workflows/release.yml calls it, on a tag. The notes are what CHANGELOG.md has as
# unreleased: the commit of a release cannot name itself.
.PHONY: release
release: release-check $(SYFT) $(COSIGN)
	@mkdir -p bin && awk '/^## / { on = /\[Unreleased\]/; next } on' CHANGELOG.md >bin/release-notes.md
	@PATH='$(dir $(SYFT)):$(dir $(COSIGN))':"$$PATH" $(GORELEASER) release --clean --release-notes bin/release-notes.md

# Signs the image as goreleaser signs the checksums. A version without a hyphen is also the
# latest one.
.PHONY: release-image
release-image: $(CRANE) $(COSIGN)
	@$(CRANE) auth login '$(firstword $(subst /, ,$(IMAGE)))' --username "$$REGISTRY_USER" --password-stdin <<<"$$REGISTRY_PASSWORD"
	@made=$$($(MAKE) -s image-local IMAGE='$(IMAGE)') && $(COSIGN) sign --yes "$$made"
	@case '$(lastword $(subst :, ,$(IMAGE)))' in *-*) ;; *) $(CRANE) tag '$(IMAGE)' latest ;; esac
