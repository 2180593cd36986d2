# Everything a newcomer runs, by name. `make` alone lists it.
#
# Each target first runs scripts/setup.sh, which finds what is missing and names it; `make setup INSTALL=yes` installs it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# rustup puts cargo here, and tells only shells opened after it.
export PATH := $(PATH):$(HOME)/.cargo/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)
export THALWEG_BIN := $(abspath $(TARGET))/release/thalweg
PYTHON := .venv/bin/python

# What cannot be built here is left out: nothing, or the congestion controls.
FEATURES = $(shell scripts/setup.sh features)
MEMBERS = $(if $(FEATURES),--workspace --exclude thalweg-py --exclude thalweg-cc $(FEATURES))
RUST_TESTS = cargo test --locked $(MEMBERS)
LOOM_TESTS := CARGO_PROFILE_RELEASE_LTO=off RUSTFLAGS="--cfg loom" cargo test --locked --release --target-dir $(TARGET)/loom -p thalweg-arena --lib

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 2,24

.PHONY: demo
demo: setup-python release ## Play a radio telescope's recording through the whole path, verify it, draw it
	@$(PYTHON) scripts/demo.py --out demo

# All steps are run, whichever fails; the end says what was skipped, and why.
.PHONY: test
test: setup-venv ## Run every test
	@scripts/test.py format lint test-rust test-loom test-python test-dist

.PHONY: check
check: setup-venv ## A few minutes' part of it, for use while working
	@scripts/test.py format lint test-some

.PHONY: bench
bench: setup release ## Measure beside the programs people use (ARGS="--quick" for a first look)
	@$(THALWEG_BIN) bench peers --install $(ARGS)

.PHONY: soak
soak: setup release ## Run each link at full rate for ten minutes (ARGS="--time 40h --link udp"); watch books and memory
	@scripts/soak.py $(ARGS)

.PHONY: release
release: setup ## Build the optimised program
	cargo build --release --locked -p thalweg $(FEATURES)

PREFIX ?= /usr/local
.PHONY: install
install: ## Install the program, man pages, completions and units (PREFIX=/usr/local, DESTDIR=)
	@test -x $(THALWEG_BIN) || { echo "build it first: make release"; exit 1; }
	@scripts/install.sh $(THALWEG_BIN) "$(DESTDIR)" $(PREFIX)

.PHONY: uninstall
uninstall: ## Take away what make install put there
	@scripts/install.sh --remove $(THALWEG_BIN) "$(DESTDIR)" $(PREFIX)

.PHONY: dist
dist: setup-venv ## Make the packages in dist/: wheel, .deb, debug information, checksums
	@cargo deb --version >/dev/null 2>&1 || { echo "cargo-deb is not installed: cargo install --locked cargo-deb"; exit 1; }
	@scripts/dist.sh release

.PHONY: setup
setup: ## Find what is missing to build (INSTALL=yes: install it, with all that tests look for)
	@scripts/setup.sh $(if $(filter yes,$(INSTALL)),--install clients && scripts/setup.sh --install venv,build)

.PHONY: setup-python
setup-python: ## The same, with the Python package in .venv
	@scripts/setup.sh python

.PHONY: setup-venv
setup-venv: ## The same, with .venv, but without the package
	@scripts/setup.sh venv

.PHONY: format
format: setup ## Check that the code is formatted
	@if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; \
	else scripts/skip.sh format "cargo has no 'fmt' here and rustup is not there to add it"; fi

.PHONY: lint
lint: setup ## Clippy, with warnings as errors
	@if cargo clippy --version >/dev/null 2>&1; then \
		cargo clippy --locked --workspace --all-targets $(if $(FEATURES),--exclude thalweg-cc $(FEATURES)) -- -D warnings && \
		cargo clippy --locked -p thalweg --no-default-features -- -D warnings; \
	else scripts/skip.sh lint "cargo has no 'clippy' here and rustup is not there to add it"; fi

.PHONY: test-rust
test-rust: setup ## Unit, conformance and whole-system tests
	@scripts/setup.sh clients
	$(RUST_TESTS) --no-fail-fast

.PHONY: test-some
test-some: setup ## Unit and conformance tests, and those of whole systems that take no time
	$(RUST_TESTS) --no-fail-fast --lib --bins --test conformance
	$(RUST_TESTS) --no-fail-fast --test system whole::

.PHONY: test-dist
test-dist: setup-python build-tests ## The packages, made of the program as tests build it, each installed into an empty place
	@if cargo deb --version >/dev/null 2>&1; then \
		scripts/dist.sh dev && THALWEG_BIN=$(abspath $(TARGET))/debug/thalweg $(PYTHON) -m pytest packaging/tests; \
	else scripts/skip.sh test-dist "cargo-deb is not installed (cargo install --locked cargo-deb)"; fi

.PHONY: test-loom
test-loom: setup ## Every interleaving of the shared-memory rings
	$(LOOM_TESTS) loom

.PHONY: test-python
test-python: setup-python build-tests ## The Python package, against runs written by the program as tests build it
	$(PYTHON) -m ruff check python scripts examples packaging .ci
	$(PYTHON) -m ruff format --check python scripts examples packaging .ci
	THALWEG_BIN=$(abspath $(TARGET))/debug/thalweg $(PYTHON) -m pytest python/tests

.PHONY: site
site: setup-python ## The documentation as a site in target/site, with the reference of Python and Rust
	@mdbook --version >/dev/null 2>&1 || { echo "mdbook is not installed: cargo install --locked mdbook"; exit 1; }
	mdbook build
	$(PYTHON) -m pdoc -o target/site/python thalweg
	cargo doc --locked --no-deps --workspace $(if $(FEATURES),--exclude thalweg-cc $(FEATURES))
	cp -r $(TARGET)/doc target/site/rust

.PHONY: fuzz
fuzz: setup ## Feed the parsers with bytes made to break them (SECONDS_EACH=60)
	@scripts/fuzz.sh

# What .ci/run builds first.
.PHONY: build-tests build-loom build-fuzz build-kernel build-machine
build-tests: setup
	$(RUST_TESTS) --no-run
build-loom: setup
	$(LOOM_TESTS) --no-run
build-fuzz: setup
	@scripts/fuzz.sh build
build-kernel: build-tests
	$(TARGET)/debug/thalweg lab build
build-machine: build-tests
	$(TARGET)/debug/thalweg lab machine

.PHONY: deny
deny: ## Licences, advisories and origins of all dependencies
	@if cargo deny --version >/dev/null 2>&1; then cargo deny check; \
	else scripts/skip.sh deny "cargo-deny is not installed (cargo install --locked cargo-deny)"; fi

.PHONY: clean
clean: ## Remove what was built and set up here
	cargo clean
	rm -rf .venv demo
