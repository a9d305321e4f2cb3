# Every target sets up .venv by itself, and again only when the pins change (scripts/setup.sh).
#   ARGS='...'              passed on: make test ARGS='-k localize', make report ARGS='--trace FILE'
#   VENV=DIR                where the environment lives
#   PYTHON=PATH             the Python 3.11+ that it is made with
#   KVLAB_PYTHON=PATH       use this interpreter and its packages as they are and install nothing:
#                           for a GPU machine that has its own torch, or a conda environment

SHELL := /bin/bash
VENV ?= .venv
export VENV PYTHON
ARGS ?=

ifdef KVLAB_PYTHON
PY := $(KVLAB_PYTHON)
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
else
PY := $(VENV)/bin/python
endif
KVLAB := $(PY) -c 'from kvlab.cli import main; raise SystemExit(main())'

CUDA_OR_SENTENCE = import torch as t; raise SystemExit(None if t.cuda.is_available() else \
	f"kvlab: make gpu needs a CUDA device and torch {t.__version__} sees none here; run it on a " \
	"machine with a GPU, with KVLAB_PYTHON=PATH if that has a torch of its own")

.DEFAULT_GOAL := help
.PHONY: help setup report test gpu lab bench check format clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

setup:  ## make or bring up to date .venv; the other targets do it for you
ifndef KVLAB_PYTHON
	@scripts/setup.sh
endif

report: setup  ## execute the notebooks, write build/report/ with every figure
	@$(KVLAB) report $(ARGS)

test: check  ## the checks, then the whole test suite on all cores
	@$(PY) -m pytest -n logical --maxprocesses 8 --dist worksteal $(ARGS)

# The files that have such tests and no others: the rest import what a GPU machine may lack.
gpu: setup  ## the tests that need a CUDA device; KVLAB_PYTHON=PATH on a machine with its own torch
	@$(PY) scripts/needs.py gpu
	@$(PY) -c '$(CUDA_OR_SENTENCE)'
	@env -u TRITON_INTERPRET $(PY) -m pytest -m gpu \
		$$(grep -rl --include='*.py' 'mark\.gpu' tests) $(ARGS)

lab: setup  ## JupyterLab with the notebooks, on this machine only
	@$(PY) -m jupyterlab --ServerApp.root_dir=. --ServerApp.ip=127.0.0.1 \
		--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb \
		$(if $(filter 0,$(shell id -u)),--allow-root) \
		--LabApp.app_settings_dir='$(CURDIR)/scripts/lab' \
		--LabApp.news_url= --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate $(ARGS)

bench: setup  ## ratios and shares of a copy, into data/runs too; ARGS=--quick only prints
	@$(PY) scripts/needs.py bench
	@$(PY) -m kvlab.lab.bench --record $(ARGS)

check: setup  ## ruff and mypy; changes nothing
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --quiet --check .
	@$(PY) -m mypy --no-error-summary
	@echo 'kvlab: ruff and mypy have no complaint'

format: setup  ## rewrite the code as ruff wants it
	@$(PY) -m ruff check --fix --exit-zero .
	@$(PY) -m ruff format .

clean:  ## remove what was built; .venv stays, as it takes minutes
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
