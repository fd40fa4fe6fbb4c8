# loadgen: what one types in this directory. `make` alone lists the targets.
PYTHON ?= python3
BIN := .venv/bin
BASE := .venv/.base
DEV := .venv/.dev
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test lint format test-real test-vllm test-docker test-browser test-slow test-all bench wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(BASE)  ## measure the simulator at 1, 8, 16 and 32 streams (under a minute)
	@$(BIN)/python -m loadgen.simulator.process --port 8123 --model sim -- \
		$(BIN)/loadgen run scenarios/quickstart.yaml

test: $(DEV)  ## run the tests (about a minute)
	@$(BIN)/pytest -n 2 --dist loadfile

lint: $(DEV)  ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(DEV)  ## put the code in shape
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

test-real: $(DEV)  ## drive real engines: llama.cpp and transformers, in venvs of their own
	@$(BIN)/pytest tests/real -m real

test-vllm: $(DEV)  ## drive the real vLLM, built for the CPU, in a venv of its own (minutes)
	@$(BIN)/pytest tests/vllm -m vllm -rs

test-docker: $(DEV)  ## drive containers on a Docker engine of their own, or say what is missing
	@$(BIN)/pytest tests/docker -m docker

test-browser: $(DEV)  ## draw the report in headless chromium
	@$(BIN)/pytest -m browser

test-slow: $(DEV)  ## the tests that take longer
	@$(BIN)/pytest -m slow -n 2 --dist loadfile

test-all: test test-slow test-browser test-real test-vllm test-docker  ## all of the above

bench: $(DEV)  ## measure the client itself against its targets (quiet machine, minutes)
	@$(BIN)/python tests/bench/run.py

wheel: $(BASE)  ## build the wheel into dist/
	@$(PIP) wheel --no-deps --wheel-dir dist .

clean:  ## remove what the targets above made, runs/ apart
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache

$(BASE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing loadgen into .venv ..." >&2
	@$(PIP) install --editable .
	@touch $@

$(DEV): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing loadgen and its development tools into .venv ..." >&2
	@$(PIP) install --editable '.[dev]'
	@touch $(BASE) $@
