# Everything a newcomer runs, by name. `make` alone lists it.
#
# Each target first runs scripts/setup.sh, which finds what is missing and names it; `make setup INSTALL=yes` installs it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# rustup puts cargo into the home directory and tells only shells opened later; .venv has the test runner.
export PATH := $(PATH):$(HOME)/.cargo/bin:$(CURDIR)/.venv/bin
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
# The demo and the tests share one build. Packages and figures are of the optimised one.
BUILT := $(TARGET)/debug
RELEASE := $(TARGET)/release
export THALWEG_BIN := $(BUILT)/thalweg
PYTHON := .venv/bin/python

# The options that leave out what cannot be built here: none, or those that leave out the programs in bpf/.
FEATURES = $(shell scripts/setup.sh features)
MEMBERS = --workspace $(FEATURES)
# Loaded into programs by `thalweg rdma run`.
LIBRARIES = -p thalweg-verbs-provider -p thalweg-verbs-preload
# Most tests wait most of the time.
THREADS := $(shell echo $$((3 * $$(nproc))))
TESTS = --locked $(MEMBERS)
NEXTEST = cargo nextest run $(TESTS) --test-threads $(THREADS)
# Clippy compiles as rustc does, and lints on the way: the tests are compiled once for both.
CLIPPY := $(shell clippy-driver --version >/dev/null 2>&1 && echo clippy-driver)
check test format lint lint-bare build-tests test-rust test-some test-python test-dist test-python-dist: export RUSTC_WORKSPACE_WRAPPER := $(CLIPPY)
# Tests of one file may share ports and sockets.
# Most tests wait for something now and then.
PYTEST = $(PYTHON) -m pytest -n $$((2 * $(shell nproc)))
LOOM_TESTS := RUSTFLAGS="--cfg loom" cargo test --locked --profile loom --target-dir $(TARGET)/loom -p thalweg-arena --lib

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 2,24

.PHONY: demo
demo: ## Play a radio telescope's recording through the whole path, verify it, draw it
	@$(MAKE) --no-print-directory -j 2 build-demo venv-demo
	@scripts/setup.sh module $(BUILT)/lib_thalweg.so
	@$(PYTHON) scripts/demo.py --out demo

.PHONY: shift
shift: ## Run control of three simulated sources and a builder, with its page and EPICS PVs, until Ctrl-C
	@$(MAKE) --no-print-directory -j 2 build-demo venv-shift
	@scripts/setup.sh module $(BUILT)/lib_thalweg.so
	@exec $(PYTHON) scripts/shift.py $(ARGS)

# All steps are run, whichever fails; the end lists what was skipped, and why.
.PHONY: test
test: ## Run every test
	@$(MAKE) --no-print-directory -j 2 build-tests venv-test
	@scripts/test.py format lint test-rust test-loom test-python-dist

.PHONY: check
check: ## A few minutes' part of it, for use while working
	@scripts/test.py format lint test-some

.PHONY: gallery
gallery: setup release ## Draw the pictures of docs/gallery.md again, by the commands in it
	@scripts/gallery.sh $(RELEASE)

.PHONY: pictures
pictures: setup ## Draw the pictures of docs/shift.md again, from the page of run control in a browser
	@$(MAKE) --no-print-directory -j 2 build venv-test
	@scripts/setup.sh module $(BUILT)/lib_thalweg.so
	@$(PYTHON) scripts/shift_pictures.py $(BUILT)/thalweg

.PHONY: bench
bench: setup release ## Measure beside the programs people use (ARGS="--quick" for a first look)
	@$(RELEASE)/thalweg bench peers --install $(ARGS)

.PHONY: soak
soak: setup release ## Run each link at full rate for ten minutes (ARGS="--time 40h --link udp"); watch books and memory
	@THALWEG_BIN=$(RELEASE)/thalweg scripts/soak.py $(ARGS)

.PHONY: build build-demo
build: setup ## Build the programs and the Python package's module, as the demo and the tests use them
	cargo build --locked -p thalweg -p thalweg-lab -p thalweg-control -p thalweg-py $(LIBRARIES) $(FEATURES)
# Without the instruments.
build-demo: setup
	cargo build --locked -p thalweg -p thalweg-control -p thalweg-py $(FEATURES)

.PHONY: release
release: setup ## Build the optimised programs
	cargo build --release --locked -p thalweg -p thalweg-lab -p thalweg-control $(LIBRARIES) $(FEATURES)

PREFIX ?= /usr/local
.PHONY: install
install: ## Install the programs, documentation, examples, completions and units (PREFIX=/usr/local, DESTDIR=)
	@test -x $(RELEASE)/thalweg || { echo "build it first: make release"; exit 1; }
	@scripts/install.sh $(RELEASE)/thalweg "$(DESTDIR)" $(PREFIX)

.PHONY: uninstall
uninstall: ## Take away what make install put there
	@scripts/install.sh --remove $(RELEASE)/thalweg "$(DESTDIR)" $(PREFIX)

.PHONY: dist
dist: setup venv-test ## Make the packages in dist/: wheel, .deb, debug information, checksums
	@command -v dpkg-shlibdeps >/dev/null 2>&1 || { echo "dpkg-shlibdeps is not installed: apt-get install dpkg-dev"; exit 1; }
	@scripts/dist.sh release

.PHONY: setup
setup: ## Find what is missing to build (INSTALL=yes: install it, with all that tests look for)
ifeq ($(INSTALL),yes)
	@scripts/setup.sh --install build
	@scripts/setup.sh --install clients
	@scripts/setup.sh --install venv test
else
	@scripts/setup.sh build
endif

# .venv with the Python packages of the demo, the shift, the tests or the site.
.PHONY: venv-demo venv-shift venv-test venv-site
venv-demo venv-shift venv-test venv-site: venv-%:
	@scripts/setup.sh venv $*

.PHONY: format
format: setup ## Check how the code is formatted, and count how plainly it speaks
	@if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; \
	else scripts/skip.sh format "cargo has no 'fmt' here and rustup is not there to add it"; fi
	@mkdir -p $(TARGET); scripts/words.py --check > $(TARGET)/words.log || { cat $(TARGET)/words.log; exit 1; }

# Cargo shows the warnings of what it has compiled before, too.
.PHONY: lint lint-bare
lint: setup ## Clippy, with warnings as errors
	@$(call linted,cargo test --quiet $(TESTS) --no-run)

# The same without the programs in bpf/. Of all crates, since a part of them would compile its dependencies anew.
lint-bare: setup
	@$(call linted,cargo check --quiet --locked --workspace --no-default-features)

define linted
	if [ -n "$(CLIPPY)" ]; then mkdir -p $(TARGET); \
		$(1) 2>&1 | tee $(TARGET)/lint.log && { ! grep -q '^warning' $(TARGET)/lint.log || { echo "lint: see the warnings"; exit 1; }; }; \
	else scripts/skip.sh $@ "cargo has no 'clippy' here and rustup is not there to add it"; fi
endef

.PHONY: test-rust
test-rust: setup venv-test ## Unit, conformance and whole-system tests (ARGS="-E 'test(udp)'": some of them)
	@scripts/setup.sh clients
	$(NEXTEST) --no-fail-fast $(ARGS)
	$(if $(ARGS),,cargo test --locked $(MEMBERS) --doc --no-fail-fast)

.PHONY: test-some
test-some: setup venv-test ## Those that take no time
	$(NEXTEST) --no-fail-fast --profile check

.PHONY: test-loom
test-loom: setup ## Every interleaving of the shared-memory rings
	$(LOOM_TESTS) loom

.PHONY: test-python
test-python: build-tests venv-test ## The Python package, against runs written by the program (ARGS="-k follow": some of it)
	$(MAKE_MODULE)
	$(PYTEST) --junitxml $(TARGET)/junit-python.xml $(ARGS) python/tests

.PHONY: test-dist
test-dist: build-tests venv-test ## The packages, made of the program as tests build it, each installed into an empty place
	@$(call packaged,scripts/dist.sh dev && $(PYTEST) packaging/tests)

# Both in one pool.
.PHONY: test-python-dist
test-python-dist: build-tests venv-test
	$(MAKE_MODULE)
	@$(call packaged,scripts/dist.sh dev)
	$(PYTEST) --junitxml $(TARGET)/junit-python.xml $(if $(DPKG),packaging/tests) python/tests

define MAKE_MODULE
	scripts/setup.sh module $(BUILT)/lib_thalweg.so
	$(PYTHON) -m ruff check python scripts examples packaging .ci
	$(PYTHON) -m ruff format --check python scripts examples packaging .ci
endef

DPKG := $(shell command -v dpkg-shlibdeps)
define packaged
	$(if $(DPKG),$(1),scripts/skip.sh test-dist "dpkg-shlibdeps is not installed (apt-get install dpkg-dev)")
endef

.PHONY: site
site: venv-site build ## The documentation as a site in target/site, with the reference of Python and Rust
	@scripts/setup.sh module $(BUILT)/lib_thalweg.so
	mdbook build
	$(PYTHON) -m pdoc -o target/site/python thalweg
	cargo doc --locked --no-deps $(MEMBERS)
	cp -r $(TARGET)/doc target/site/rust

.PHONY: fuzz
fuzz: setup venv-test ## Feed the parsers with bytes made to break them (SECONDS_EACH=60; QUICK=yes: built sooner, runs slower)
	@scripts/fuzz.sh

.PHONY: world
world: setup ## Whole systems in worlds made up from seeds (SEEDS=100000, TIME=1h, ARGS="--seed 36")
	cargo run --quiet --locked --profile world -p thalweg-world -- $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(TIME)$(SEEDS),--time $(or $(TIME),1y)) $(ARGS)

.PHONY: build-tests build-loom build-fuzz build-kernel build-machine
build-tests: setup
	cargo test $(TESTS) --no-run $(TIMINGS)
	cargo build --locked $(MEMBERS)
build-loom: setup
	$(LOOM_TESTS) --no-run
build-fuzz: setup venv-test
	@scripts/fuzz.sh build
build-kernel: build-tests
	$(THALWEG_BIN) lab build
build-machine: build-tests
	$(THALWEG_BIN) lab machine

.PHONY: deny
deny: ## Licences, advisories and origins of all dependencies
	@if cargo deny --version >/dev/null 2>&1; then cargo deny check; \
	else scripts/skip.sh deny "cargo-deny is not installed (cargo install --locked cargo-deny)"; fi

.PHONY: clean
clean: ## Remove what was built and set up here
	cargo clean
	rm -rf .venv demo
