# One recipe for a person and for CI. `make train` and `make test` do all set-up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= examples/arithmetic/train.toml
ARGS ?=
# Two processes run the tests. Those of a file share fixtures and stay together; files go in order, since the longest are not last.
SIDE_BY_SIDE := --numprocesses 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install train test check bench sim schema vllm test-vllm clean

help: ## what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/installed ## the locked environment in .venv

$(VENV)/installed: requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	@echo "Installing the locked environment (torch is large: a minute or two) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --requirement requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

train: install ## the main job: warm start, GRPO on tool tasks, held-out success, a report (ARGS="run.seed=1" overrides)
	@$(BIN)/headrace train $(CONFIG) $(ARGS)

EXTRAS := requirements/renderers.txt requirements/fixtures.txt examples/bfcl/requirements.txt examples/smollm2/requirements.txt

$(VENV)/extras: $(VENV)/installed $(EXTRAS)
	@echo "Installing what the tests of optional parts need ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps $(addprefix --requirement ,$(EXTRAS))
	@touch $@

test: $(VENV)/extras ## every test, those of optional parts too; vLLM has its own: make test-vllm
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

check: install ## lint, types, import contracts, fast tests
	@$(BIN)/ruff check headrace labs tests benchmarks examples
	@$(BIN)/ruff format --check --quiet headrace labs tests benchmarks examples
	@$(BIN)/pyright
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -m "not slow" $(SIDE_BY_SIDE) $(ARGS)

sim: install ## the scheduling experiment: waiting against asynchronous consumption, no torch
	@$(BIN)/python -m labs.run --experiment rollout --seed 7 $(ARGS)

explore: install ## crashes, faults and interleavings over simulated runs, every law on every log (ARGS="--seeds 10000")
	@$(BIN)/headrace explore $(ARGS)

bench: install ## every benchmark; for peers beside see docs/benchmarks.md
	@for file in benchmarks/[a-z]*.py; do $(BIN)/python -m benchmarks.$$(basename $$file .py) $(ARGS) || exit 1; done

schema: install ## writes docs/schema and docs/lifecycle.md anew
	@$(BIN)/python -m headrace.documents docs

vllm: install ## vLLM for CPUs in .venv-vllm (3.5 GB), for inference.kind = "vllm"
	@test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	@echo "Installing vLLM into .venv-vllm (3.5 GB: about four minutes) ..."
	@.venv-vllm/bin/python -m pip install -qq --disable-pip-version-check --requirement requirements/vllm.txt
	@.venv-vllm/bin/python -m pip uninstall -qq --yes torchvision torchaudio torchcodec 2>/dev/null; true
	@.venv-vllm/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .

test-vllm: vllm ## the contract of the Inference port, and an update, against a real vLLM
	@$(BIN)/python -m pytest -m vllm $(ARGS)

clean: ## removes the environment and caches; runs stay
	@rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
