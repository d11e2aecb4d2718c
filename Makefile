# Everything a developer or CI runs. `make help` lists the targets; each sets up what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV    := .cache/venv
TOOLS   := .cache/tools/bin
SERVERS := .cache/servers/bin
INTEROP := .cache/interop
PYTHON  := $(CURDIR)/$(VENV)/bin/python
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)

FUZZTIME   ?= 5s
DEMO_FLAGS ?=
BENCH      ?= e2e

# Random draws of the tests come from the sources themselves: the same sources draw the same, changed ones draw anew.
# SEED=N repeats the draws of another run; `make explore` draws at random, more of them.
SEED  ?= $(shell printf '%d' 0x$$(git rev-parse --short=12 'HEAD^{tree}' 2>/dev/null || echo 1))
DRAWS ?= 1000
RAPID_PKGS = $(shell grep -rl --include='*_test.go' --exclude-dir=.cache '"pgregory\.net/rapid"' . | xargs -r -n1 dirname | LC_ALL=C sort -u)

# Packages that start goroutines have a leak check (internal/archtest sees to it); those are the ones worth racing.
RACE_PKGS = $(shell grep -rl --include='*_test.go' --exclude-dir=.cache 'goleak\.VerifyTestMain' . | xargs -r -n1 dirname | LC_ALL=C sort -u)
# The end-to-end tests drive the real binaries, and those of the architecture must not come from go's test cache,
# which does not see new packages: both are run on their own.
UNIT_PKGS = $(shell go list ./... | grep -vE '/internal/(e2e|archtest)$$')

# AVIF is read where libavif is; without it all else is.
ifeq ($(shell pkg-config --exists libavif 2>/dev/null && echo yes),yes)
export GOFLAGS := $(GOFLAGS) -tags=avif
endif

# Python code of the project finds the binaries, and the binaries the interpreter, by these.
export MILLRACE_BIN := $(CURDIR)/bin/millrace
RUN_ENV = PATH="$(CURDIR)/bin:$(CURDIR)/$(VENV)/bin:$$PATH" PYTHONPATH="$(CURDIR)/clients/python/src"

.PHONY: help
help: ## Say what can be made.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

## Set-up: each is quick once done.

.PHONY: setup setup-system setup-tools setup-lint-tools setup-servers setup-interop setup-test setup-demo
setup: setup-test setup-tools setup-servers setup-interop ## Install all that building and testing need (system packages, Go tools, Python environment).

setup-system:
	@.ci/setup-system

setup-tools: setup-lint-tools
	@.ci/setup-tools $(TOOLS)

setup-lint-tools: setup-system
	@.ci/setup-system python
	@.ci/setup-venv $(VENV) .ci/requirements-tools.txt

setup-servers: setup-system
	@.ci/setup-servers $(SERVERS)

setup-interop: setup-system
	@.ci/setup-system java
	@.ci/setup-interop $(INTEROP)

setup-test: setup-system
	@.ci/setup-system python
	@.ci/setup-venv $(VENV) .ci/requirements-test.txt

setup-demo: setup-system
	@.ci/setup-system python
	@.ci/setup-venv $(VENV) demo/requirements.txt

## Building.

.PHONY: build sidecar cross proto
build: setup-system sidecar ## Build bin/millrace (cgo) and bin/millrace-sidecar (static).
	CGO_ENABLED=1 go build -buildvcs=false -trimpath -ldflags '$(LDFLAGS)' -o bin/millrace ./cmd/millrace

sidecar:
	CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w $(LDFLAGS)' -o bin/millrace-sidecar ./cmd/millrace-sidecar

cross: ## Check that everything builds without cgo, and the sidecar for linux/arm64.
	CGO_ENABLED=0 go build -buildvcs=false ./...
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build -buildvcs=false -trimpath -o /dev/null ./cmd/millrace-sidecar

proto: setup-tools ## Lint the protos and generate their Go code anew.
	@$(VENV)/bin/buf lint
	@$(VENV)/bin/buf format -w
	@PATH="$(CURDIR)/$(TOOLS):$$PATH" $(VENV)/bin/buf generate
	@cd proto && find . -name '*.proto' -o -name '*.pb.go' | LC_ALL=C sort | xargs sha256sum > .generated.sum

## Checks, from the fastest to the slowest.

.PHONY: check fmt lint unit portable explore race sanitize fuzz-short e2e python pillow test
check: setup-tools ## Check formats, go.mod, protos and scripts.
	@for script in .ci/run .ci/test .ci/fuzz .ci/pillow .ci/setup-*; do bash -n "$$script"; done
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | grep -v '\.pb\.go$$' | xargs -r $(TOOLS)/gofumpt -l -extra); \
		if [ -n "$$unformatted" ]; then printf 'error: not formatted, run make fmt:\n%s\n' "$$unformatted" >&2; exit 1; fi
	@go mod tidy -diff >/dev/null || { echo 'error: go.mod or go.sum is not tidy, run go mod tidy' >&2; exit 1; }
	@$(VENV)/bin/buf lint
	@$(VENV)/bin/buf format -d --exit-code
	@$(VENV)/bin/ruff check -q demo
	@$(VENV)/bin/ruff format -q --check demo

fmt: setup-tools ## Format Go, Python and proto sources.
	@git ls-files -co --exclude-standard '*.go' | grep -v '\.pb\.go$$' | xargs -r $(TOOLS)/gofumpt -w -extra
	@$(VENV)/bin/buf format -w
	@$(VENV)/bin/ruff format -q demo clients/python

lint: setup-tools ## Lint the Go code.
	$(TOOLS)/golangci-lint run ./...

unit: export MILLRACE_S3_SERVERS := $(CURDIR)/$(SERVERS)
unit: setup-tools setup-servers ## Run the Go tests.
	@MILLRACE_BUF="$(CURDIR)/$(VENV)/bin/buf" MILLRACE_PROTOC_PLUGINS="$(CURDIR)/$(TOOLS)" go test -count=1 ./internal/archtest
	@echo "random draws by SEED=$(SEED)"
	@go test $(filter-out $(RAPID_PKGS:.%=github.com/millrace/millrace%),$(UNIT_PKGS))
	@go test $(RAPID_PKGS) -rapid.seed=$(SEED)

# The oracle's bytes are those of every variant: vector instructions off, and no C at all.
portable: setup-system ## Run the tests of image operators without vector instructions, and without cgo.
	@MILLRACE_SIMD=scalar go test -count=1 ./preprocess/op/optest
	@CGO_ENABLED=0 go test ./preprocess/op/...

explore: setup-system ## Run the tests that draw at random with DRAWS (1,000) new draws each.
	@go test -count=1 -timeout=60m $(RAPID_PKGS) -rapid.checks=$(DRAWS)

race: setup-system ## Run the Go tests of packages that start goroutines under the race detector.
	@go test -race -short $(filter-out $(RAPID_PKGS),$(RACE_PKGS))
	@go test -race -short $(filter $(RAPID_PKGS),$(RACE_PKGS)) -rapid.seed=$(SEED)

# The exhaustive test of hues takes too long under sanitizers, and looks at no memory that others do not.
sanitize: export CGO_CFLAGS := -O1 -g -fsanitize=undefined -fno-sanitize-recover=all
sanitize: export CGO_LDFLAGS := -fsanitize=undefined
sanitize: setup-system ## Run all files through the image kernels with sanitizers of addresses and of undefined behaviour.
	@go test -asan -count=1 -skip TestHueOfAllColors ./preprocess/op/imagekernel -rapid.seed=$(SEED)
	@go test -asan -count=1 -skip TestOperatorDump ./preprocess/op/optest ./preprocess/op/jpegrestart

fuzz-short: setup-system ## Run each fuzz target for FUZZTIME (5s).
	@.ci/fuzz $(FUZZTIME)

e2e: export MILLRACE_INTEROP := $(CURDIR)/$(INTEROP)
e2e: export MILLRACE_S3_SERVERS := $(CURDIR)/$(SERVERS)
e2e: build setup-test setup-interop setup-servers ## Run the end-to-end tests with the real binaries.
	@$(RUN_ENV) go test -count=1 ./internal/e2e/...

python: build setup-test ## Lint, type-check and test the Python client.
	@cd clients/python && ../../$(VENV)/bin/ruff check . && ../../$(VENV)/bin/ruff format --check . && ../../$(VENV)/bin/mypy --strict src
	@cd clients/python && $(RUN_ENV) $(PYTHON) -m pytest --hypothesis-seed=$(SEED)

pillow: setup-test ## Hold the decoders and operators against Pillow 13 and 12, its own test images, and torchvision.
	@.ci/pillow $(VENV) .cache/pillow

test: ## Run everything that CI runs, setting up what it needs.
	@.ci/test

## Showing.

.PHONY: demo demo-data bench clean
demo-data: setup-demo ## Make the demo's dataset in data/demo.
	@$(PYTHON) demo/make_dataset.py

demo: ## Train a small network on two ranks; DATA=URI takes your own data, DEMO_FLAGS are passed on.
	@start=$$SECONDS; \
	$(MAKE) setup-demo build $(if $(DATA),,demo-data); \
	echo "set-up took $$((SECONDS - start)) s"; \
	$(RUN_ENV) OMP_NUM_THREADS=1 MILLRACE_SETUP_SECONDS=$$((SECONDS - start)) $(PYTHON) -m torch.distributed.run --standalone --nproc-per-node 2 \
		demo/train.py $(if $(DATA),--data '$(DATA)') $(DEMO_FLAGS)

bench: setup-demo build demo-data ## Run a benchmark: BENCH=e2e.
	@$(RUN_ENV) bin/millrace bench $(BENCH)

clean: ## Remove what was built; .cache (tools, Python environment, photographs) and data stay.
	rm -rf bin
	go clean -testcache
