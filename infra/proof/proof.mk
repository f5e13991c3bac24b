# Proof: real clients, the official suite, benchmarks, documents

# Nothing of it fails because of what it measures.
.PHONY: shape
shape: need-go ## Measure the shape of the code: lines, methods on one state, references back, arrows, long functions, knobs; V=-v lists the knobs
	@cd infra/proof && go run ./shape $(V) ../..

.PHONY: test-clients
test-clients: need-go need-node need-python need-mvn build ## Run real clients (TypeScript, Python, Go, Java) against Dormouse
	@cd infra/proof && go test -count=1 -parallel 4 -v -tags clients -timeout 40m ./clients/...

# DORMOUSE_SHOTS=FOLDER keeps the screenshots.
.PHONY: test-console
test-console: need-node build ## Look at the console in a real browser (Chromium from npm, or DORMOUSE_TEST_BROWSER)
	@cd infra/proof && go test -count=1 -v -timeout 20m -tags browser -run '^TestConsole' ./console

.PHONY: test-idp
test-idp: need-go need-node need-python need-mvn build ## Sign in at a Keycloak, which Maven fetches once (160 MB), with every client
	@cd infra/proof && go test -count=1 -v -tags clients,keycloak -run '^TestRealClientsSignInWithKeycloak$$' -timeout 20m ./clients

# Cargo builds the Rust clients once, which takes minutes. PAGE= leaves infra/proof/clients/results.md as it is.
# COLUMNS='/mcp,remote' runs these columns; the table keeps the others.
PAGE ?= 1
.PHONY: matrix
matrix: need-go need-node need-python need-cargo need-mvn build ## Run every client against servers of each era, and releases of two years; write the tables of infra/proof/clients/results.md
	@cd infra/proof && DORMOUSE_MATRIX_PAGE='$(PAGE)' DORMOUSE_MATRIX_COLUMNS='$(if $(filter command line,$(origin COLUMNS)),$(COLUMNS))' go test -count=1 -v -tags clients,matrix -run '^Test(Matrix|Releases|ReferenceServerPassesEveryClient)$$' -timeout 60m ./clients

# LANE=2025-11-25 runs the lanes of one requirement set, LANE=2025-11-25/legacy one.
.PHONY: conformance
conformance: need-go need-node build ## Run the official conformance suite through the relay (LANE= for some of it)
	@cd infra/proof && go test -count=1 -v -timeout 40m -tags conformance -run '$(if $(LANE),TestOfficialSuitePasses/$(LANE),.)' ./conformance

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
bench-native: need-go ## Compare a call of a native server with go-sdk's own handler: medians and their ratio
	@go test -run '^$$' -bench '^BenchmarkRebuilt$$' -benchtime 5s ./shared/backend/native | grep -v '^{'

# What benchstat compares: make bench-go > new.txt && benchstat infra/proof/bench/baseline.txt new.txt
COUNT ?= 6
.PHONY: bench-go
bench-go: need-go ## Run the Go benchmarks of the hot path, for benchstat (BENCH='Parse' for some, COUNT=6)
	@go test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime 200ms -count $(COUNT) ./shared/core/wire ./shared/store/sqlitestore

.PHONY: profile
profile: ## Take CPU profiles of Dormouse under load, print their first lines
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
	@go test -count=1 -run '^TestCostOfNativeServers$$' ./shared/backend/native -update
	@go test -count=1 -run '^TestAStackAtRestCostsAtMostFiveCents$$' ./infra/stack -update

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
