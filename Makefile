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
KEEPER_BUILD := CGO_ENABLED=0 go build -C infra/keeper -trimpath -ldflags '-s -w'
PROGRAMS := dormouse emulator/dormouse runner $(patsubst functions/%/main.go,%,$(wildcard functions/*/main.go))

# The Go modules: the product, and the proof (benchmarks, real clients, the official
# suite, costs), which the product must not depend on. Both are checked alike.
# infra/keeper is a third one, whose kernel takes minutes to build: make test-keeper checks it.
MODULES := . infra/proof
, := ,
space := $(subst x,,x x)
each = for module in $(MODULES); do ( cd $$module && $(1) ) || exit; done

# What a caller may set: make run ARGS='--listen 127.0.0.1:9000', make fuzz FUZZTIME=5m.
ARGS     ?=
FUZZTIME ?= 10s
BENCH    ?= .

# The rest is where it belongs. What is defined there is used below.
include infra/need.mk infra/image/image.mk infra/stack/aws.mk infra/dormouse/tests.mk infra/proof/proof.mk

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' 'FNR == 1 && NR > 1 { printf "\n%s\n", substr($$0, 3) } \
	  /^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile infra/stack/aws.mk infra/image/image.mk infra/dormouse/tests.mk infra/proof/proof.mk

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
bin/dormouse-keeper: force need-go
	@$(KEEPER_BUILD) -o '$(CURDIR)/$@' ./dormouse-keeper
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
	  'the keeper (make test-keeper)' 'the console in a browser (make test-console)' 'earlier releases (make test-upgrade)' \
	  'certificates (make test-acme)' 'macOS (make vet-darwin)' 'the site (make site)' \
	  'function programs and handlers that are made anew, end to end (make test-e2e FUNCTIONS=process, FUNCTIONS=cold)' \
	  'the stack (make check-stack, bench-cold, sam-local)' 'the image of the boxes (make test-image)' $(if $(RACE),,'the race detector (make test RACE=yes)')
	@printf 'LEFT OUT, make nightly has it: %s\n' 'most simulated worlds, chaos, fuzzing'

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

.PHONY: lint
lint: need-go $(STAMP) ## Run the linters
	@$(call each,$(LINT) run --allow-serial-runners ./...)

.PHONY: vet
vet: need-go
	@$(call each,go mod tidy -diff && go vet -tags e2e$(,)clients$(,)matrix$(,)browser$(,)keycloak$(,)conformance$(,)servers$(,)image$(,)release$(,)acme$(,)upgrade$(,)walk$(,)samlocal$(,)cold$(,)engine ./...)
	@go vet -tags aws ./functions/...

.PHONY: fmt
fmt: need-go $(STAMP) ## Format all Go files
	@$(call each,$(LINT) fmt ./...)

.PHONY: deploy
deploy: need-go $(SAM) bin/dormouse ## Deploy to AWS with the image of the boxes (CONFIG=dev or prod for others in samconfig.toml; GO_SERVERS=FOLDER for a program with servers in Go)
	@$(STACK) $(if $(filter-out file,$(origin ARCH)),-arch $(ARCH)) $(if $(FORCE),-force) $(if $(YES),-yes) up $(ARGS)

.PHONY: delete
delete: need-go $(SAM) ## Stop the boxes and delete the stack, once you type its name; table and bucket stay (PURGE=1 deletes them too, YES=1 asks nothing)
	@$(STACK) $(if $(PURGE),-purge) $(if $(YES),-yes) down

.PHONY: clean
clean: ## Remove what was built; sessions (.dormouse) and tools (.tools) stay
	@rm -rf bin .aws-sam
