# make matrix: the nine-way demonstration.  make test: everything that a change must pass.
# Both install what they need into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup matrix test test-long lint clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "error: python=$(PYTHON): it has no venv module; python >= 3.10 with venv is needed; on Debian: apt-get install python3-venv" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

matrix: setup
	$(BIN)/python train.py experiments=nine_way

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -m 'not long'

test-long: setup
	$(BIN)/python -m pytest -m long

clean:
	rm -rf $(VENV) build *.egg-info
