# make matrix: the nine-way demonstration.  make test: everything that a change must pass.
# make faults: crashes, signals, damaged files, full disks, bad input, at length (40 minutes).
# make long: the statistics on thousands of made-up studies, and studies killed and disturbed on purpose.
# make bench: the speed of all of it against the raw loop and its rivals (35 minutes, quiet machine).
# All install what they need into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ERROR := error: PYTHON=$(PYTHON): it cannot make virtual environments; python 3.10 or later with \
	the venv module is needed; on Debian run apt-get install python3-venv
NO_STRACE := error: strace=missing: faults are injected into system calls with it; Linux is needed; \
	on Debian run apt-get install strace
NO_CHROMIUM := error: chromium=missing: the report's page is tested in a real browser; chromium or \
	google-chrome is needed; on Debian run apt-get install chromium

.PHONY: setup matrix test faults long bench lint clean

setup: $(VENV)/.installed

# Debian's python3 comes without ensurepip; root is helped to it, anyone else is told.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -q && apt-get install -qy python3-venv; } \
	  || { echo "$(ERROR)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[dev]'
	@touch $@

matrix: setup
	$(BIN)/python train.py experiments=nine_way

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# As with venv: root is helped to a browser, anyone else is told.
test: lint
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -q && apt-get install -qy chromium; } \
	  || { echo "$(NO_CHROMIUM)" >&2; exit 2; }
	$(BIN)/python -m pytest -n 2

# Faults are injected into system calls by strace; root is helped to it, anyone else is told.
faults: setup
	@command -v strace >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -q && apt-get install -qy strace; } \
	  || { echo "$(NO_STRACE)" >&2; exit 2; }
	$(BIN)/python -m pytest tests/faults -m '' -n 2

# One at a time: a study that is disturbed on purpose is not to be disturbed by chance.
long: setup
	$(BIN)/python -m pytest -m slow --ignore tests/faults

# What it is compared with is installed on top, and used by nothing else.
bench: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m benchmarks --output benchmarks/results

clean:
	rm -rf $(VENV) build *.egg-info
