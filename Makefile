# Two commands for a fresh clone: `make demo` and `make test`. Both make .venv through the exact versions of constraints.txt.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test browser campaign coverage fuzz sanitize lint types install clean

demo: install
	$(BIN)/memgen demo --out demo

test: install lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Bad files and kills, for 15 minutes; make campaign HOURS=8 for a night. If it is stopped, it goes on from campaign.json.
HOURS ?= 0.25
campaign: install
	$(BIN)/python -m tests.campaign --hours $(HOURS) --state campaign.json --page docs/robustness.md

# What the tests of the page drive: Debian's chromium, and axe-core from npm. Where one of them cannot be had, the tests
# that need it are skipped, and say so.
AXE := 4.14.0
browser:
	command -v chromium >/dev/null || { command -v apt-get >/dev/null && apt-get install -y --no-install-recommends chromium; } || true
	mkdir -p .browser
	test -f .browser/axe.min.js || { cd .browser && npm pack --silent axe-core@$(AXE) && \
	  tar -xzf axe-core-$(AXE).tgz --strip-components 1 package/axe.min.js && rm axe-core-$(AXE).tgz; } || true

# The server under 5,000 requests of any kind, then under 32 clients at once for a minute.
fuzz: install
	MEMGEN_FUZZ=5000 MEMGEN_LOAD_SECONDS=60 $(BIN)/python -m pytest tests/web/test_fuzz.py tests/web/test_work.py

# Watching every line takes half as long again.
coverage: install
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term

# All operations in C under the address and undefined-behaviour sanitizers.
sanitize: install
	$(BIN)/python -m pytest tests/accelerate/test_sanitizers.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

install: $(VENV)/.installed

# Only the stamp counts: an install that was interrupted is done again, from the start.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "memgen needs Python 3.10 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet -c constraints.txt hatchling editables
	$(PIP) install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .browser demo dist build .mypy_cache .ruff_cache .pytest_cache .coverage .coverage.*
