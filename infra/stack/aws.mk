# AWS

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
build-HttpFunction build-SocketFunction build-RelayFunction build-SweepFunction build-OauthFunction build-ConsoleFunction build-SetupFunction: build-%Function: need-go
	@cd '$(or $(OWN),.)' && $(AWS_BUILD) -tags lambda.norpc,aws -o '$(ARTIFACTS_DIR)/bootstrap' $(if $(OWN),.,./functions/$$(tr A-Z a-z <<<'$*'))
	@cp servers.json $(wildcard servers.lock.json) '$(ARTIFACTS_DIR)/'
	@$(if $(filter Setup,$*),$(AWS_BUILD) -tags aws -o '$(ARTIFACTS_DIR)/runner' ./infra/runner/cmd)

# By this layer CloudFormation sees that the runner has changed.
build-RunnerLayer: need-go
	@$(AWS_BUILD) -tags aws -o '$(ARTIFACTS_DIR)/runner' ./infra/runner/cmd

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
sam-local: need-go $(SAM) ## Type the commands of events/README.md, with functions in the containers of sam local invoke (needs Docker, or root to start it)
	@ARCH=$(LOCAL_ARCH) AWS_DEFAULT_REGION=us-east-1 $(SAM) build --build-dir .aws-sam/local --parameter-overrides Architecture=$(LOCAL_ARCH) >/dev/null
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
STACK := go run ./infra/stack/deploy -sam $(SAM) -config $(CONFIG) $(if $(GO_SERVERS_AT),-go-servers '$(GO_SERVERS_AT)')

.PHONY: doctor
doctor: need-go ## Say what would fail in a deployment to AWS; needs rights to read only
	@$(STACK) doctor $(ARGS)

.PHONY: boxes
boxes: need-go bin/dormouse ## Deploy boxes as Lambda functions beside the stack, in one of their own, with their image
	@$(STACK) boxes

.PHONY: restore
restore: need-go ## Restore the stack's table as it was at AT (a time such as 2026-11-23T12:00:00Z, or now) beside it
	@$(STACK) restore $(if $(AT),AT=$(AT))

.PHONY: logs
logs: need-go $(SAM) ## Follow the logs of the stack
	@$(STACK) logs

# The tests of files with the build tag walk. They type both ways to deploy, an upgrade and a
# deletion in a copy of the clone, with the real make, sam, aws, crane and dormouse; and
# create, update, restore and upgrade the stack. All of that is processes, of which the race
# detector sees nothing.
.PHONY: walk-stack
walk-stack: need-go $(SAM) $(CRANE) ## Walk docs/aws/deploy.md against an emulator of AWS, and have it judge the stack
	@DORMOUSE_TEST_CRANE=$(CRANE) go test -count=1 -tags walk -timeout 30m -run "^($$(sed -n 's/^func \(Test[A-Za-z0-9]*\)(.*/\1/p' $$(grep -lx '//go:build walk' infra/stack/*_test.go) | paste -sd '|'))$$" ./infra/stack
