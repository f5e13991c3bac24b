# Images and releases

.PHONY: runner-aws
runner-aws: need-go
	@mkdir -p bin/linux-$(AWS_GOARCH)
	@$(AWS_BUILD) -tags aws -o bin/linux-$(AWS_GOARCH)/runner ./infra/runner/cmd

# crane puts images together without a Docker engine.
CRANE_VERSION := v0.22.1
CRANE         := $(TOOLS)/crane-$(CRANE_VERSION)/crane
$(CRANE): | need-go
	@GOBIN='$(dir $@)' GOFLAGS= GOOS= GOARCH= go install github.com/google/go-containerregistry/cmd/crane@$(CRANE_VERSION)

# make deploy calls it. IMAGE is the RepositoryUri of the stack's outputs and a tag that
# is not there yet; RunnerImage then names it. LOCKS is a folder of locks, such
# as cache/locks of a machine where the servers were installed: boxes install the same bytes.
# BAKE= leaves the servers of SERVERS out of the image. So does LOCKS, because a server in the
# image was installed without these locks.
SERVERS ?= servers.json
BAKE    ?= $(if $(LOCKS),,1)
.PHONY: image
image: runner-aws bin/dormouse need-python $(CRANE) ## Push the image of the boxes, with the servers of servers.json installed, without Docker (IMAGE=REPOSITORY:TAG LOCKS=FOLDER BAKE=; password of user AWS on stdin)
	@[ -n '$(IMAGE)' ] || { echo 'want IMAGE=REPOSITORY:TAG, the RepositoryUri of the stack: aws ecr get-login-password | make image IMAGE=...:mine' >&2; exit 1; }
	@$(if $(BAKE),bin/dormouse image --servers '$(SERVERS)' --platform linux/$(AWS_GOARCH) </dev/null >&2)
	@LOCKS='$(LOCKS)' BAKED='$(if $(BAKE),bin/baked)' infra/image/push.sh $(CRANE) bin/linux-$(AWS_GOARCH)/runner linux/$(AWS_GOARCH) '$(IMAGE)'

.PHONY: test-image
test-image: runner-aws need-python need-node $(CRANE) build ## Push images of boxes to a registry in memory, and look at them
	@DORMOUSE_TEST_CRANE=$(CRANE) go test -count=1 -tags image ./infra/image
	@go test -count=1 -tags image $(if $(filter-out 0,$(shell id -u)),-exec 'sudo -n') -run '^TestTheRunnerStartsInAnyImage$$' ./infra/runner

# The image of one machine, for Docker and its like. IMAGE is REPOSITORY:TAG, to which
# docker login or crane auth login has logged in; or a file for docker load, such as
# dormouse.tar, with PLATFORMS=linux/amd64.
PLATFORMS ?= linux/amd64 linux/arm64
.PHONY: image-local
image-local: need-go need-python $(CRANE) ## Push the image of one machine, without Docker (IMAGE=REPOSITORY:TAG, or a FILE.tar with PLATFORMS=linux/amd64)
	@[ -n '$(IMAGE)' ] || { echo 'want IMAGE=REPOSITORY:TAG, or IMAGE=dormouse.tar PLATFORMS=linux/amd64' >&2; exit 1; }
	@for platform in $(PLATFORMS); do export GOOS=$${platform%/*} GOARCH=$${platform#*/}; \
	  $(GO_BUILD) -o "bin/$${platform/\//-}/dormouse" ./infra/cmd/dormouse && $(KEEPER_BUILD) -o "$(CURDIR)/bin/$${platform/\//-}/dormouse-keeper" ./dormouse-keeper || exit; done
	@infra/image/machine.py $(CRANE) '$(IMAGE)' $(foreach platform,$(PLATFORMS),$(platform)=bin/$(subst /,-,$(platform))/dormouse)

# Needs Node and curl, which it puts into the base of its image. Ends with 69 where there
# is no Docker engine and none can be started.
.PHONY: test-container
test-container: need-node need-python $(CRANE) bin/dormouse bin/dormouse-keeper ## Run the image of one machine (needs Docker, or root to start it)
	@go vet -tags image,engine ./infra/image
	@DORMOUSE_TEST_CRANE=$(CRANE) infra/stack/engine.sh go test -count=1 -tags image,engine -run '^TestAContainer' ./infra/image

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
