# What must be on this machine, said in a sentence before something else fails.

$(STAMP): | need-go
	@echo 'installing golangci-lint $(GOLANGCI_LINT_VERSION) into .tools/bin: takes a few minutes, once'
	@GOBIN='$(TOOLS)/bin' GOFLAGS= GOOS= GOARCH= go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	@rm -f '$(TOOLS)'/golangci-lint-*.installed
	@touch '$@'

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
