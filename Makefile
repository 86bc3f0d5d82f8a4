# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: run test faults bench lint format clean

run: .venv/.installed
	$(BIN)/python app.py $(ARGS)

test: .venv/.installed-dev
	$(BIN)/python -m pytest $(ARGS)

# Injects every fault of the catalogue into real runs: a line for each, exit code 1 if a promise is broken.
faults: .venv/.installed-dev
	$(BIN)/python -m tests.faults $(ARGS)

# Speed as ratios measured side by side. ARGS="--only train ddp --rounds 8 --record"
bench: .venv/.installed-dev
	$(BIN)/python -m benchmarks $(ARGS)

lint: .venv/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

.venv/.installed: requirements.txt | .venv/bin/python
	@echo "Installing PyTorch and Gradio, about 6 GB: this takes some minutes."
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -r requirements.txt
	touch $@

.venv/.installed-dev: requirements.txt requirements-dev.txt | .venv/bin/python
	@echo "Installing PyTorch, Gradio and the tools, about 6 GB: this takes some minutes."
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -r requirements-dev.txt
	touch .venv/.installed $@
