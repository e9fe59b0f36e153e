# make matrix: the nine-way demonstration.  make test: everything that a change must pass.
# make test ONEDNN_MAX_CPU_ISA=AVX512_CORE: the same as on a CPU without instructions for bf16.
# make quick: lint, and the tests that start no process; under a minute.
# make faults: crashes, signals, damaged files, full disks, bad and hostile input (20 minutes; Linux, root).
# make long: the statistics on thousands of simulated studies, studies disturbed on purpose, slow runs,
# examples.
# make gpu: what only a GPU can show, in 13 minutes (docs/internals/performance.md).
# make gpu-test: the tests that need a GPU.
# make frameworks: bench, with scripts of Lightning, Fabric, accelerate and Hugging Face.
# make docs: the site in site/, from docs/; strictly, and without a network once it is installed.
# make bench: speed compared with the raw loop and other libraries (35 minutes, on an idle machine).
# Each installs what it needs into .venv first, in editable mode: what is changed is used at once. The
# matrix needs the package alone, tests what each of its parts is tested with. What
# the system lacks is installed by apt-get as root, and said before; SYSTEM=no prevents it.
PYTHON ?= python3
SYSTEM ?= yes
VENV := .venv
BIN := $(VENV)/bin
ALONE := tests/api tests/promises/test_wheel.py tests/study/test_timing.py tests/bench \
	tests/test_gpu_sitting.py
# Files of tests that start no process and take no time; tests of structure but those that start one.
QUICK := tests/task tests/test_structure.py $(patsubst %,tests/test_%.py,amp errors files types) \
	$(patsubst %,tests/checkpoint/test_%.py,weights writer) \
	$(patsubst %,tests/config/test_%.py,fingerprint options overrides processes rules schema untrusted) \
	$(patsubst %,tests/dataset/test_%.py,batches loader mapped) tests/measure/test_clock.py \
	$(patsubst %,tests/report/test_%.py,counted_turns numerics processes retrain_command) \
	tests/model/test_models.py tests/parallel/test_dp.py tests/study/test_checks.py tests/train/test_loss_tracker.py \
	--deselect tests/test_structure.py::test_the_launchers_side_imports_no_torch \
	--deselect tests/test_structure.py::test_each_file_that_make_quick_names_is_there \
	--deselect tests/test_amp.py::test_amp_default_is_what_torch_does_by_itself
FAULTS := tests/faults $(wildcard tests/extensions/*/test_faults.py)
# Thirty tests of commands, which are forked elsewhere: here each is a new interpreter.
FRESH := tests/launch/test_run.py tests/study/test_screen.py \
	$(patsubst %,tests/promises/test_%.py,like own_code recipes resume_and_evaluate)
ERROR := error: PYTHON=$(PYTHON): it cannot create virtual environments; python 3.11 or later with \
	the venv module is needed; on Debian run apt-get install python3-venv
NO_STRACE := error: strace=missing: faults are injected into system calls with it; Linux is needed; \
	on Debian run apt-get install strace
NO_SLURM := error: slurmd=missing: jobs are tested on a Slurm of two nodes on this machine; slurm and munge \
	are needed; on Debian run apt-get install slurm-wlm munge
NO_CHROMIUM := error: chromium=missing: the report's page is tested in a real browser; chromium or \
	google-chrome is needed; on Debian run apt-get install chromium

# Hundreds of processes are started: each would compile the package anew where this is set.
unexport PYTHONDONTWRITEBYTECODE

# $(call install,PACKAGES): fails where it may not, or cannot.
install = test "$(SYSTEM)" != no && test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	&& echo "make: $(1): missing on this system, and now installed by apt-get; SYSTEM=no prevents it" >&2 \
	&& apt-get update -q && apt-get install -qy $(1)

.PHONY: setup matrix chromium quick quick-tests test faults long gpu gpu-test frameworks bench docs lint clean

setup: $(VENV)/.installed

# Debian's python3 comes without ensurepip.
$(VENV)/.package: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { $(call install,python3-venv); } \
	  || { echo "$(ERROR)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable .
	@touch $@

# What tests need, besides.
$(VENV)/.installed: $(VENV)/.package
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[dev]'
	@touch $@

matrix: $(VENV)/.package
	$(BIN)/python train.py experiments=nine_way

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

chromium:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
	  || { $(call install,chromium); } \
	  || { echo "$(NO_CHROMIUM)" >&2; exit 2; }

# One core lints, the other tests.
quick: setup
	@$(MAKE) --no-print-directory --output-sync --jobs 2 lint quick-tests

quick-tests: setup
	$(BIN)/python -m pytest -q --no-processes $(QUICK)

# What the system lacks is said first: after minutes of setup and lint nobody looks.
test: chromium lint
# Tests wait as long as they compute: three processes keep two cores busy. With worksteal each takes a
# third of the files, in order: a file's fixtures are made once.
	$(BIN)/python -m pytest -n 3 --dist worksteal

# strace injects faults into system calls, and Slurm runs jobs.
faults: setup
	@command -v strace >/dev/null \
	  || { $(call install,strace); } \
	  || { echo "$(NO_STRACE)" >&2; exit 2; }
	@PATH="$$PATH:/usr/sbin"; command -v slurmd >/dev/null && command -v munged >/dev/null \
	  || { $(call install,slurm-wlm munge); } \
	  || { echo "$(NO_SLURM)" >&2; exit 2; }
	$(BIN)/python -m pytest $(FAULTS) -m 'not gpu' -n 2

# What measures the machine's real time runs alone: other tests are load.
long: setup chromium
	$(BIN)/python -m pytest --fresh $(FRESH)
	$(BIN)/python -m pytest -m 'slow and not gpu' $(ALONE)
	$(BIN)/python -m pytest -m 'slow and not gpu' $(FAULTS:%=--ignore=%) $(ALONE:%=--ignore=%) -n 2

# The sitting on a GPU: 13 minutes, 21 on several.
gpu: setup
	$(BIN)/python -m benchmarks.gpu

# All other targets of tests hide the GPUs of a machine from them.
gpu-test: setup
	$(BIN)/python -m pytest -m gpu

# The libraries to compare with are installed in addition; nothing else uses them.
frameworks: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[frameworks]'
	$(BIN)/python -m pytest -m frameworks tests/frameworks

bench: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m benchmarks --output benchmarks/results

# What draws the site is installed in addition; nothing else uses it.
$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) site build *.egg-info
