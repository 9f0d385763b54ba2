# Everything starts here: `make demo` and `make test` set up what they need.
SHELL := /bin/sh
VENV  := .venv
BIN   := $(VENV)/bin
# The first interpreter of these that is new enough; PYTHON=… chooses another.
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help agents coverage demo demo-handover demo-repo replay test thorough check fmt lock schemas golden bench soak clean

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Stepwise needs Python 3.11 or newer: install it, or name it with PYTHON=…" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module: install it (Debian: apt-get install python3-venv)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.made locks/core.txt pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/core.txt
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.all: $(VENV)/.core locks/all.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/all.txt
	@touch $@

$(VENV)/.agents: $(VENV)/.made deploy/agents/package.json deploy/agents/package-lock.json deploy/agents/node.txt deploy/agents/install.sh
	@sh deploy/agents/install.sh $(VENV)/agents $(BIN)/python || { echo "Gemini CLI could not be installed: its tests are skipped, and the transport gemini-cli is not available" >&2; exit 2; }
	@touch $@

agents: $(VENV)/.all $(VENV)/.agents ## Install the real agents: Claude Agent SDK and Codex from PyPI, Gemini CLI from npm

demo: $(VENV)/.core ## Run a flow end to end: on a small repository, or with REPO=… TASK=… [GATE=… TRANSPORT=… SCENARIO=… ALLOW_DIRTY=1]
	@REPO='$(subst ','\'',$(REPO))' TASK='$(subst ','\'',$(TASK))' GATE='$(subst ','\'',$(GATE))' TRANSPORT='$(subst ','\'',$(TRANSPORT))' SCENARIO='$(subst ','\'',$(SCENARIO))' ALLOW_DIRTY='$(subst ','\'',$(ALLOW_DIRTY))' $(BIN)/python -m cli.demo

demo-handover: $(VENV)/.all ## Stop Claude in the middle of its work, and let Codex go on from there (scripted models, no key)
	@$(BIN)/python examples/handover.py

demo-repo: $(VENV)/.core ## Make the demo repository at DEST=…
	@$(BIN)/python examples/demo_repo.py $(DEST)

replay: $(VENV)/.core ## Replay HISTORY=… (a file, a folder, a workflow id), or decide it again under WHAT_IF=flow.yaml
	@test -n '$(subst ','\'',$(HISTORY))' || { echo "Say what to replay: make replay HISTORY=history.json" >&2; exit 2; }
	@$(BIN)/stepwise replay '$(subst ','\'',$(HISTORY))' $(if $(WHAT_IF),--what-if '$(subst ','\'',$(WHAT_IF))')

test: $(VENV)/.all ## Run the tests (real Temporal server, real git, real agents with scripted models)
	@$(MAKE) --no-print-directory agents || true
	$(BIN)/python -m pytest -n 5 --dist worksteal $(PYTEST_ARGS)

thorough: $(VENV)/.all ## Run what `make test` leaves out: more combinations and longer forms of what it shows
	@$(MAKE) --no-print-directory agents || true
	STEPWISE_EXAMPLES=4 $(BIN)/python -m pytest -n 4 --dist worksteal -m "thorough or hypothesis" $(PYTEST_ARGS)

coverage: $(VENV)/.all ## Run the tests of the engine with its branches counted (slower), and hold them to their bound
	$(BIN)/python -m pytest -n 4 --dist worksteal --cov --cov-report=term:skip-covered --cov-report=xml \
		tests/unit tests/workflows tests/histories tests/integration tests/chaos \
		-k 'not claude and not gemini and not codex and not real_agents and not handover' $(PYTEST_ARGS) \
		|| $(BIN)/python -m pytest --cov --cov-append --last-failed --last-failed-no-failures none
	$(BIN)/python tests/branches.py

check: $(VENV)/.all ## Lint, types, import rules, dependencies, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/python -m schemas.export --check
	$(BIN)/python docs/settings_table.py --check
	$(BIN)/python tests/conformance/matrix.py --check
	$(BIN)/python deploy/check.py

fmt: $(VENV)/.all ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

schemas: $(VENV)/.core ## Write the JSON Schemas anew
	$(BIN)/python -m schemas.export

golden: $(VENV)/.all ## Record the golden histories anew (only when a change of the workflow is meant to break them)
	$(BIN)/python tests/histories/record.py

bench: $(VENV)/.all ## Measure the engine against a bare workflow, interrupts, and transports; write docs/performance.md
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.interrupts
	$(BIN)/python -m benchmarks.transports

soak: $(VENV)/.all ## Play flows, messages and crashes by chance: STEPWISE_SOAK=500 runs, STEPWISE_SOAK_SEED=… to repeat
	$(BIN)/python tests/soak/soak.py
	STEPWISE_KILLS=20 $(BIN)/python -m pytest tests/chaos/test_many_kills.py
	STEPWISE_LEAK_RUNS=50 $(BIN)/python -m pytest -m "not live" -rP tests/soak/test_agents_leaks.py tests/soak/test_run_leaks.py

lock: $(VENV)/.all ## Resolve the dependencies anew
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header -o locks/core.txt
	$(BIN)/uv pip compile pyproject.toml --extra all --extra dev --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header -o locks/all.txt

clean: ## Remove the environment and everything that was generated
	rm -rf $(VENV) .stepwise .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage coverage.xml
