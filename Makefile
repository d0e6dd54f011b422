# Set-up and the few commands of daily use. Every target installs what it needs first; a second call installs nothing.
#   make serve PORT=8001 MODEL=path/to/model        TORCH_INDEX=<package index to take torch from, empty: pip's own>

PORT ?= 8000
MODEL ?= smollm2
TORCH_INDEX ?=
ARGS ?=

# Of two models on one machine the default one has all cores, the small one needs no more than one.
BESIDE = --set models.0.engine.num_threads=$$(getconf _NPROCESSORS_ONLN) --set models.1.engine.num_threads=1

BIN := .venv/bin
PIP := $(BIN)/python -m pip install -c constraints.txt
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup serve chat demo test check test-ci test-slow clean

help: ## this list
	@grep -hE '^[a-z%-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

setup: .venv/.ok ## create .venv and install tokenmill with its engine

serve: .venv/.ok ## serve MODEL on 127.0.0.1:PORT (by default SmolLM2, fetched on first use, and v4-nano beside it)
ifeq ($(MODEL),smollm2)
	@if $(BIN)/tokenmill pull smollm2; then \
	  exec $(BIN)/tokenmill serve smollm2 v4-nano $(BESIDE) --port $(PORT); \
	else \
	  echo "smollm2 cannot be fetched: serving v4-nano alone, the small model inside the package" >&2; \
	  exec $(BIN)/tokenmill serve v4-nano --port $(PORT); \
	fi
else
	$(BIN)/tokenmill serve $(MODEL) --port $(PORT)
endif

chat: .venv/.ok ## talk to MODEL in the terminal
	$(BIN)/tokenmill chat $(MODEL)

demo: .venv/.ok ## start a server, send requests, print speed and cost, stop
	$(BIN)/python examples/demo.py $(MODEL)

test: .venv/.ok-test ## units, properties, in-process equivalence (minutes)
	$(PYTEST) -n 2 -m "not ci and not slow"

check: .venv/.ok-test ## lint, format, types, layering
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -q tests/test_architecture.py

test-ci: .venv/.ok-test ## process tests, one after the other; a skipped back-end is a failure
	TOKENMILL_NO_SKIP=1 $(PYTEST) -m "ci and not slow"

test-slow: .venv/.ok-test ## soaks and full grids (hours)
	$(PYTEST) -m slow --timeout 3600

test-peers-%: .venv/.ok-test ## real clients or other engines, pinned in environments of their own: test-peers-clients
	$(BIN)/python tests/peers/$*/run.py $(ARGS)

clean: ## remove the environment and every cache of the tools
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis htmlcov .coverage

# python3.11 first (prebuilt packages are most likely there), else any python3 that is new enough.
.venv/bin/python:
	@for python in python3.11 python3; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "using $$($$python --version) ($$python)"; exec $$python -m venv .venv; fi; \
	done; \
	echo "tokenmill needs Python 3.11 or newer and found neither python3.11 nor such a python3: install one and try again" >&2; \
	exit 1

.venv/.ok: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing tokenmill and its engine into .venv (some minutes the first time)"
	$(if $(TORCH_INDEX),$(PIP) --index-url $(TORCH_INDEX) torch)
	$(PIP) -e '.[engine,gguf]'
	@touch $@

.venv/.ok-test: .venv/.ok
	@echo "installing the test and development tools into .venv"
	$(PIP) -e '.[engine,gguf,test,dev]'
	@touch $@
