# `make test` is what continuous integration runs (.ci/run). `make help` lists the rest.

GO       ?= go
BENCH    ?= .
COUNT    ?= 8
FUZZTIME ?= 30s
CHAOS    ?= 10m
# More flags for go test, for instance TESTFLAGS='-run TestConformance -v'.
TESTFLAGS ?=

# Every directory with a go.mod: the library and the modules nested in it.
MODULES := $(sort $(patsubst ./%,%,$(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path '*/.*'))))
# The tools understand no newer Go than they were built with, so each Go has its own.
BIN := $(CURDIR)/bin/$(shell $(GO) env GOVERSION)

# A go.work around this checkout must not decide what is tested.
export GOWORK = off

# each runs a command in every module and fails if one did, after all have had their turn.
each = @failed=; for m in $(MODULES); do \
		echo "== $$m: $(strip $(1))"; (cd $$m && $(1)) || failed="$$failed $$m"; \
	done; test -z "$$failed" || { echo "failed in:$$failed" >&2; exit 1; }

.PHONY: help test test-latest lint bench fuzz chaos tools servers
.NOTPARALLEL:

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

test: export LOCKER_TEST_SERVERS = require
test: servers lint ## lint, then the tests of every module with the race detector, on real servers
	$(call each,$(GO) test -race -shuffle=on -timeout 20m $(TESTFLAGS) ./...)

# The committed go.mod asks for the lowest versions that pass. The newest go into a copy of it.
test-latest: export LOCKER_TEST_SERVERS = require
test-latest: servers ## the library's tests against the newest versions of its dependencies
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && cp go.mod go.sum "$$tmp" && \
	$(GO) get -modfile="$$tmp/go.mod" -t -u ./... && \
	$(GO) test -modfile="$$tmp/go.mod" -race -shuffle=on $(TESTFLAGS) ./...

lint: tools ## gofmt, go vet and staticcheck, in every module
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); \
	test -z "$$unformatted" || { echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; } >&2
	$(call each,$(GO) vet ./...)
	$(call each,$(BIN)/staticcheck ./...)

bench: ## the benchmarks that match BENCH, COUNT times in turn, as benchstat reads them
	@for run in $$(seq $(COUNT)); do for m in $(MODULES); do \
		(cd $$m && $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem $(TESTFLAGS) ./...) || exit 1; \
	done; done

fuzz: ## every fuzz test for FUZZTIME
	@grep -rn --include='*_test.go' '^func Fuzz' . | sed -E 's|/[^/]*:[0-9]+:func (Fuzz[A-Za-z0-9_]*).*| \1|' | \
	while read -r dir name; do \
		echo "== $$dir $$name"; \
		(cd $$dir && $(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) .) || exit 1; \
	done

chaos: servers ## storms of random cancellations on every backend, for CHAOS, with the race detector
	LOCKER_TEST_SERVERS=require LOCKER_CHAOS=$(CHAOS) \
		$(GO) test -race -run Chaos -timeout 2h -v $(TESTFLAGS) ./singleflight

tools: $(BIN)/staticcheck ## build staticcheck and benchstat into bin/

$(BIN)/staticcheck: internal/tools/go.mod internal/tools/go.sum
	$(GO) -C internal/tools build -buildvcs=false -o $(BIN)/ tool

servers: ## install redis-server, memcached and a C compiler where they are missing (Debian, Ubuntu)
	@.ci/install
