# `make test` and `make lint` are what continuous integration runs (.ci/run). `make help` lists the
# rest.

GO       ?= go
BENCH    ?= .
COUNT    ?= 8
FUZZTIME ?= 30s
CHAOS    ?= 10m
DURATION ?= 10m
PROVE    ?= ./...
# The oldest go-redis that go.mod allows, and others that differ in pub/sub, timeouts or defaults.
GOREDIS  ?= 9.5.5 9.20.0 9.22.0
# How many modules are tested at a time, how many packages of each, and how many tests of a package:
# tests mostly wait. The library has as many packages as all other modules, which have one or two.
JOBS     ?= 3
PACKAGES ?= 3
PARALLEL ?= 8
# More flags for go test, for instance TESTFLAGS='-run TestConformance -v'.
TESTFLAGS ?=

# Every directory with a go.mod: the library and the modules nested in it.
MODULES := $(sort $(patsubst ./%,%,$(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path '*/.*'))))
# The modules whose tests take longest, which begin first.
LONGEST := . etcd conformance/internal/proof postgres rueidis cmd/locker examples/stampede sqllock/internal/sqltest benchmarks
# The tools understand no newer Go than they were built with, so each Go has its own.
BIN := $(CURDIR)/bin/$(shell $(GO) env GOVERSION)

# A go.work around this checkout must not decide what is tested.
export GOWORK = off

# each runs a command in every module and fails if one did, after all have had their turn.
each = @failed=; for m in $(MODULES); do \
		echo "== $$m: $(strip $(1))"; (cd $$m && $(1)) || failed="$$failed $$m"; \
	done; test -z "$$failed" || { echo "failed in:$$failed" >&2; exit 1; }

.PHONY: help test test-all compile quick test-latest lint api platforms bench scale fuzz chaos prove mutants pictures tools servers
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

test: export LOCKER_TEST_SERVERS = require
test: servers compile ## what a change can break: every module, with the race detector, on real servers
	@$(MAKE) --no-print-directory -k -j $(JOBS) -O SIDE_BY_SIDE=1 \
		$(addprefix test-in/,$(LONGEST) $(filter-out $(LONGEST),$(MODULES)))

# The race detector's build of everything, without linking. Modules share packages, which several
# compilers at a time would compile several times, and tests would wait for them. Errors are
# reported by the tests.
compile:
	@for m in $(MODULES); do $(GO) -C $$m list -race -test -export ./... >/dev/null 2>&1 || true; done

# make lint vets. Packages without tests would each have a line.
test-in/%:
	@cd $* && packages=$$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...) && \
	if [ -n "$$packages" ]; then \
		$(GO) test -race -vet=off -shuffle=on -p $(PACKAGES) -parallel $(PARALLEL) -timeout 20m $(TESTFLAGS) $$packages; \
	fi

test-all: export LOCKER_TEST = all
test-all: export LOCKER_CONFORMANCE = strict
test-all: ## make test with all variants, and test-latest: clients, options, servers, wrappers over each adapter
	@failed=; for t in test test-latest; do $(MAKE) --no-print-directory $$t || failed="$$failed $$t"; done; \
	test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

quick: ## build the library and test what needs no server that is not installed
	$(GO) build ./...
	$(GO) test $(TESTFLAGS) ./...

# histories checks those of locks that linger over batches, on a version of go-redis.
histories = (cd conformance/internal/proof && cp go.mod go.sum "$$tmp" && \
	$(GO) get -modfile="$$tmp/go.mod" -t ./lincheck github.com/redis/go-redis/v9@$(1) && \
	$(GO) test -modfile="$$tmp/go.mod" -race -shuffle=on -timeout 45m $(TESTFLAGS) -run Lingering ./lincheck)

# The committed go.mod asks for the lowest versions that pass. The others go into a copy of it.
test-latest: export LOCKER_TEST_SERVERS = require
test-latest: export LOCKER_CHAOS = 2s
test-latest: export LOCKER_TEST =
test-latest: servers ## the library's and rueidis's tests on the newest dependencies, redisv9's and cohort's on each go-redis in GOREDIS
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && failed=; \
	for v in $(GOREDIS); do \
		echo "== redisv9 on go-redis $$v"; \
		cp go.mod go.sum "$$tmp" && \
		$(GO) get -modfile="$$tmp/go.mod" -t ./... github.com/redis/go-redis/v9@v$$v && \
		$(GO) test -modfile="$$tmp/go.mod" -race -shuffle=on -timeout 45m $(TESTFLAGS) ./redisv9 && \
		LOCKER_TEST=all $(GO) test -modfile="$$tmp/go.mod" -race -shuffle=on -timeout 45m $(TESTFLAGS) -run 'Chaos|Lingering' ./cohort && \
		$(call histories,v$$v) || failed="$$failed $$v"; \
	done; \
	echo "== everything on the newest"; \
	cp go.mod go.sum "$$tmp" && \
	$(GO) get -modfile="$$tmp/go.mod" -t -u ./... && \
	$(GO) test -modfile="$$tmp/go.mod" -race -shuffle=on -timeout 45m $(TESTFLAGS) ./... && \
	$(call histories,latest) || failed="$$failed newest"; \
	echo "== rueidis on the newest"; \
	(cd rueidis && cp go.mod go.sum "$$tmp" && \
	$(GO) get -modfile="$$tmp/go.mod" github.com/redis/rueidis@latest && \
	$(GO) test -modfile="$$tmp/go.mod" -race -shuffle=on -timeout 45m $(TESTFLAGS) ./...) || failed="$$failed rueidis"; \
	test -z "$$failed" || { echo "failed on:$$failed" >&2; exit 1; }

lint: tools api ## gofmt, go vet, staticcheck and go mod tidy in every module, and the API's changes
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); \
	test -z "$$unformatted" || { echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; } >&2
	$(call each,$(GO) vet ./...)
	$(call each,$(BIN)/staticcheck ./...)
	$(call each,$(GO) mod tidy -diff)

# An incompatible change is no error before version 1, but it must be seen.
api: tools ## how the exported API differs from the last release's
	@.ci/api $(BIN)/apidiff

platforms: ## build and vet the library for 32-bit machines, macOS and Windows
	GOARCH=386 $(GO) build ./...
	GOARCH=386 $(GO) vet ./...
	GOOS=darwin $(GO) vet ./...
	GOOS=windows $(GO) vet ./...

bench: ## the benchmarks that match BENCH, COUNT times in turn, as benchstat reads them
	@for run in $$(seq $(COUNT)); do for m in $(MODULES); do \
		(cd $$m && $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem $(TESTFLAGS) ./...) || exit 1; \
	done; done

scale: servers ## what waiting and many locks cost, and what large fleets need; writes docs/scale.md
	$(GO) run -C benchmarks . -only scale
	$(GO) run -C benchmarks . -fleets ../docs/scale.md

fuzz: ## every fuzz test for FUZZTIME
	@grep -rn --include='*_test.go' '^func Fuzz' . | sed -E 's|/[^/]*:[0-9]+:func (Fuzz[A-Za-z0-9_]*).*| \1|' | \
	while read -r dir name; do \
		echo "== $$dir $$name"; \
		(cd $$dir && $(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) .) || exit 1; \
	done

chaos: servers ## storms of random cancellations on every backend, for CHAOS, with the race detector
	LOCKER_TEST_SERVERS=require LOCKER_TEST=all LOCKER_CHAOS=$(CHAOS) \
		$(GO) test -race -run 'Chaos|Lingering' -timeout 2h -v $(TESTFLAGS) ./cohort

# The raw figures of earlier runs stay: the report uses the last one of each test.
prove: servers ## the parts of the proof in PROVE, for DURATION each; writes docs/proof.md
	LOCKER_TEST_SERVERS=require LOCKER_TEST=all LOCKER_PROVE=$(DURATION) \
		$(GO) test -count=1 -timeout 1h -v $(TESTFLAGS) -run Explore ./internal/redislock
	cd conformance/internal/proof && \
		LOCKER_TEST_SERVERS=require LOCKER_TEST=all LOCKER_PROVE=$(DURATION) LOCKER_PROOF=$$PWD/results.jsonl \
		$(GO) test -p 1 -count=1 -timeout 6h -v $(TESTFLAGS) $(PROVE) && \
		$(GO) run ./report report/results.md.tmpl results.jsonl > new.md && mv new.md results.md && \
		$(GO) run ./report report/proof.md.tmpl results.jsonl > new.md && mv new.md ../../../docs/proof.md

mutants: servers ## every check of package conformance against every broken locker
	LOCKER_TEST_SERVERS=require LOCKER_TEST=all $(GO) test -race -count=1 -run Mutants -timeout 1h $(TESTFLAGS) ./conformance

# Besides the servers it needs tmux and prometheus.
pictures: servers ## the pictures and captures in docs/, from real runs
	STAMPEDE_PICTURES=$(CURDIR)/docs/pictures $(GO) test -C examples/stampede/browser -count=1 -run TestPicture .
	LOCKER_TEST_CAPTURE=1 $(GO) test -C cmd/locker -count=1 -run TestCapture .
	$(GO) run -C examples/dashboard . -o $(CURDIR)/docs/pictures/dashboard.svg

tools: $(BIN)/staticcheck ## build apidiff, benchstat and staticcheck into bin/

$(BIN)/staticcheck: internal/tools/go.mod internal/tools/go.sum
	$(GO) -C internal/tools build -buildvcs=false -o $(BIN)/ tool

servers: ## install the servers, a browser and a C compiler where they are missing (Debian, Ubuntu)
	@.ci/install
