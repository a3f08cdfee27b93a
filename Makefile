# `make demo` and `make test` do all their set-up themselves; the second time they are quick.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
# How many test processes: one per core.
JOBS ?= auto

.PHONY: help demo test test-all test-matrix lint bench bench-faults browser docs docs-site clean
help:
	@echo "make demo      see it: a training run with one broken kernel, on the accelerator that is here or a simulated one"
	@echo "make test      lint, then every test but the slow ones"
	@echo "make test-all  lint, then every test, then test-matrix"
	@echo "make test-matrix  the redirect's tests and some of the tools' with other Pythons and releases of PyTorch, as far as they can be had here"
	@echo "make lint      ruff and mypy"
	@echo "make bench     what the tools cost; speed and op coverage of the simulated accelerator"
	@echo "make bench-faults  does OpAutoCompare name the guilty op, of reported faults, too, and leave healthy programs alone?"
	@echo "make docs      write the tables in docs that are made from code"
	@echo "make docs-site the documentation as a site, English and Chinese, in site/index.html"
	@echo "make clean     remove .venv and what tools left behind"

demo: $(INSTALLED)
	$(RUN) -m ditorch demo

test: lint browser
	$(RUN) -m pytest -n $(JOBS)

test-all: lint browser
	$(RUN) -m pytest -n $(JOBS) -m ""
	$(RUN) tests/matrix.py

browser:
	@command -v chromium chromium-browser google-chrome $(CHROMIUM) >/dev/null || \
		echo "No Chromium here: the tests of the report are left out (apt-get install chromium, or set CHROMIUM)"

test-matrix: $(INSTALLED)
	$(RUN) tests/matrix.py

lint: $(INSTALLED)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench-faults: $(INSTALLED)
	$(RUN) benchmarks/fault_finding.py
	$(RUN) benchmarks/reported_faults.py
	$(RUN) benchmarks/healthy_programs.py
	$(RUN) benchmarks/identities.py

bench: $(INSTALLED)
	$(RUN) benchmarks/overhead.py
	$(RUN) benchmarks/sim_speed.py
	$(RUN) benchmarks/op_coverage.py
	$(RUN) benchmarks/redirect_cost.py

# torch first and pinned: left to itself, pip takes the newest with gigabytes of CUDA packages.
$(INSTALLED): pyproject.toml constraints.txt Makefile
	@echo "Setting up .venv (once; again when pyproject.toml or constraints.txt change) …"
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 9))" || { echo "ditorch needs Python 3.9 or newer: set PYTHON"; exit 1; }
	@$(PYTHON) -c "import ensurepip" || { echo "Python's venv is missing: apt-get install python3-venv"; exit 1; }
	@command -v g++ >/dev/null || command -v clang++ >/dev/null || { echo "A C++ compiler is missing: apt-get install g++"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade "pip>=25.1"
	$(RUN) -m pip install --quiet --constraint constraints.txt torch
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable . --group dev
	@touch $@

docs: $(INSTALLED)
	$(RUN) docs/make_tables.py

docs-site: $(INSTALLED)
	$(RUN) -m mkdocs build --quiet --strict
	$(RUN) -m mkdocs build --quiet --strict --config-file mkdocs.zh.yml

clean:
	rm -rf site $(VENV) .matrix .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist src/*.egg-info
