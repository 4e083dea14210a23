# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Many tests wait for processes and servers, so two cores are kept busy by three workers.
WORKERS := $(shell cores=$$(nproc 2>/dev/null || echo 2); [ $$cores -gt 3 ] && echo $$cores || echo 3)

PLAIN := .bench/plain
LOWEST := .bench/lowest
DIST := .bench/dist

.PHONY: demo test quick torture plain-install lowest extras lint docs system cli-agents \
	packages release-check release setup-demo setup clean

$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --editable '.[benchmarks]' || \
		echo "Some packages of benchmarks cannot be installed here; tests that need them are skipped."
	touch $@ $(VENV)/.demo

setup-demo: $(VENV)/.demo
setup: $(VENV)/.dev

demo: setup-demo  ## train a small skill with the built-in practice models: no key, no network
	$(BIN)/skillfit demo

test: setup  ## the whole test suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -q

# Some of every package below cli; the other files there wait for programs, servers or whole runs.
QUICK := $(addprefix tests/,skill config gate optimize run rollout \
	$(patsubst %,models/test_%.py,client backoff limiter structured practice) \
	$(patsubst %,tasks/test_%.py,task rows sources splits judges) \
	$(patsubst %,training/test_%.py,plan step memory estimate evaluate))

quick: setup  ## a fast part of the test suite, for the inner loop
	$(BIN)/python -m pytest -n auto -q -m "not slow" $(QUICK)

plain-install: setup  ## the wheel, without extras in an empty environment, does what the pages show
	$(PYTHON) -m venv --clear $(PLAIN)
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(PLAIN)/wheel .
	$(PLAIN)/bin/python -m pip install --quiet $(PLAIN)/wheel/*.whl
	SKILLFIT_PLAIN=$(CURDIR)/$(PLAIN) $(BIN)/python -m pytest -n $(WORKERS) -q tests/plain_install

lowest: setup  ## the same with the lowest version of every dependency that pyproject.toml allows
	$(PYTHON) -m venv --clear $(LOWEST)
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(LOWEST)/wheel .
	$(BIN)/python .ci/lowest.py > $(LOWEST)/pins.txt
	$(LOWEST)/bin/python -m pip install --quiet -c $(LOWEST)/pins.txt $(LOWEST)/wheel/*.whl
	SKILLFIT_PLAIN=$(CURDIR)/$(LOWEST) $(BIN)/python -m pytest -n $(WORKERS) -q tests/plain_install

extras: setup  ## each extra alone in an empty environment, and its smallest example: takes half an hour
	$(BIN)/python .ci/extras.py $(EXTRAS)

packages: setup  ## build wheel and sdist, and check metadata, contents, sizes and licences
	rm -rf $(DIST)
	$(BIN)/python -m hatchling build -d $(DIST)
	$(BIN)/twine check --strict $(DIST)/*
	$(BIN)/python .ci/packages.py $(DIST) $(FINAL)

release-check: packages  ## the same, and the demo by uvx from the wheel
	folder=$$(mktemp -d) && cd $$folder && $(CURDIR)/$(BIN)/uvx --python $(CURDIR)/$(BIN)/python \
		--from $(CURDIR)/$(DIST)/*.whl skillfit demo --plain && rm -r $$folder

release: FINAL := --final
release: release-check  ## publish the version of this checkout: docs/contributing.md says what comes before
	test -z "$$(git status --porcelain)"
	git tag v$$($(BIN)/skillfit --version | cut -d' ' -f2)
	$(BIN)/twine upload $(DIST)/*
	git push origin --tags

torture: setup  ## longer fuzzing of model replies, with a new seed each time
	SKILLFIT_FUZZ_SEED=$$(date +%s) SKILLFIT_FUZZ_CASES=10000 $(BIN)/python -m pytest -n auto -q tests/faults/test_wire_fuzz.py

lint: setup  ## style, types, and the order of imports between packages
	$(BIN)/ruff check src tests bench examples .ci
	$(BIN)/ruff format --check src tests bench examples .ci
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup  ## the documentation site, into site/
	$(BIN)/mkdocs build --strict

system:  ## Debian packages that some tests use: a browser for the pages, bubblewrap for the sandbox
	command -v chromium >/dev/null && command -v bwrap >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium bubblewrap >/dev/null; }

# Without @latest, npm takes an old version of a program whose newest names a later Node than is here.
# The programs are binaries, and run all the same.
cli-agents:  ## the real coding-agent programs from npm, for tests/agents/test_real_clis.py
	npm install --prefix .bench/cli-agents --no-fund --no-audit \
		$(addsuffix @latest,@anthropic-ai/claude-code @openai/codex opencode-ai @github/copilot @google/gemini-cli)
	cd .bench/cli-agents/node_modules/@anthropic-ai/claude-code && node install.cjs  # npm may hold back install scripts
	cd .bench/cli-agents/node_modules/opencode-ai && node postinstall.mjs

clean:
	rm -rf $(VENV) site dist .mypy_cache .ruff_cache .pytest_cache
