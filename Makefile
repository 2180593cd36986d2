# Everything a newcomer runs, by name. `make` alone lists it.
#
# Each target first runs scripts/setup.sh, which finds what is missing and installs it; when nothing is, that takes
# well under a second.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# rustup puts cargo here, and tells only shells opened after it.
export PATH := $(PATH):$(HOME)/.cargo/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)
export THALWEG_BIN := $(abspath $(TARGET))/release/thalweg
PYTHON := .venv/bin/python

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 2,24

.PHONY: demo
demo: setup-python release ## Play a radio telescope's recording through the whole path, verify it, draw it
	@$(PYTHON) scripts/demo.py --out demo

.PHONY: test
test: setup-python format lint test-rust test-loom test-python ## Run every test

.PHONY: bench
bench: setup release ## Measure beside the programs people use (ARGS="--quick" for a first look)
	@$(THALWEG_BIN) bench peers --install $(ARGS)

.PHONY: release
release: setup ## Build the optimised program
	cargo build --release --locked -p thalweg

.PHONY: setup
setup: ## Find what is missing to build, and install it
	@scripts/setup.sh build

.PHONY: setup-python
setup-python: ## The same, with the Python package in .venv
	@scripts/setup.sh python

.PHONY: format
format: setup ## Check that the code is formatted
	@if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; \
	else echo "skipped: formatting: cargo has no 'fmt' here and rustup is not there to add it"; fi

.PHONY: lint
lint: setup ## Clippy, with warnings as errors
	@if cargo clippy --version >/dev/null 2>&1; then \
		cargo clippy --locked --workspace --all-targets -- -D warnings; \
	else echo "skipped: lints: cargo has no 'clippy' here and rustup is not there to add it"; fi

.PHONY: test-rust
test-rust: setup ## Unit, conformance and whole-system tests
	@scripts/setup.sh clients
	cargo test --locked --no-fail-fast

.PHONY: test-loom
test-loom: setup ## Every interleaving of the shared-memory rings
	RUSTFLAGS="--cfg loom" cargo test --locked --release --target-dir $(TARGET)/loom -p thalweg-arena --lib loom

.PHONY: test-python
test-python: setup-python release ## The Python package, against runs written by the program
	$(PYTHON) -m ruff check python scripts examples
	$(PYTHON) -m ruff format --check python scripts examples
	$(PYTHON) -m pytest python/tests

.PHONY: fuzz
fuzz: setup ## Feed the parsers with bytes made to break them (SECONDS_EACH=60)
	@scripts/fuzz.sh

.PHONY: deny
deny: ## Licences, advisories and origins of all dependencies
	@if cargo deny --version >/dev/null 2>&1; then cargo deny check; \
	else echo "skipped: cargo-deny is not installed (cargo install --locked cargo-deny)"; fi

.PHONY: clean
clean: ## Remove what was built and set up here
	cargo clean
	rm -rf .venv demo
