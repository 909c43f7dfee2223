# Two commands for a fresh clone: `make demo` and `make test`. Both make .venv through the exact versions of constraints.txt.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# pip also honours constraints in the isolated environment that builds the project.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: demo test lint types install clean

demo: install
	$(BIN)/memgen demo --out demo

test: install lint types
	$(BIN)/python -m pytest --cov --cov-report=term

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

install: $(VENV)/.installed

# A half-made .venv from an interrupted install is made anew: only the stamp counts.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "memgen needs Python 3.10 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo dist build .mypy_cache .ruff_cache .pytest_cache .coverage .coverage.*
