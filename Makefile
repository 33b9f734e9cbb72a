# The two commands of a new user are `make train` and `make test`; `make check` is what CI runs first.
#
#   make train            set up, then train CartPole-v1 with PPO until its stop criterion
#   make train CONFIG=configs/ppo_pendulum.yaml ARGS='seed=2 training.lr=1e-3'
#   make test             the fast tests
#   make test-learning    trains until published numbers are reached      (minutes)
#   make test-faults      kills processes, fills disks, interrupts runs   (minutes)
#   make soak             the same for hours: 20 kills a case, 50 runners, 10 million steps
#   make mutants          changes the package in 400 places, one at a time; the fast tests must notice (half an hour and more)
#   make test-oldest      the fast tests with the oldest versions that pyproject.toml declares (gigabytes)
#   make check            format, lint, types, fast tests
#   make bench            the benchmark suite, side by side with the peers
#   make docs             regenerates the generated pages of docs/
#   make lock             re-resolves requirements.lock from pyproject.toml

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CONFIG ?= configs/ppo_cartpole.yaml
ARGS   ?=
PYTEST := $(BIN)/python -m pytest $(ARGS)
WORKERS ?= 2
EXTRAS := atari,box2d,envpool,export,minigrid,mujoco,optuna,pettingzoo,plot,tensorboard,video

# What training needs is installed first; extras and tools come with everything else. The stamps' names
# hold a checksum of what decides the installation, so a checkout that only touches time stamps installs
# nothing, and a changed lock installs the difference. pip would compile all files of torch and ray, for
# half a minute. Python compiles those that are imported, and writes them down for the next start; this
# must not be switched off, or each start would take seconds more.
SUM   := $(shell cat requirements.lock pyproject.toml 2>/dev/null | cksum | tr ' ' '-')
CORE  := $(VENV)/core-$(SUM)
STAMP := $(VENV)/installed-$(SUM)
PIP   := $(BIN)/python -m pip install --disable-pip-version-check

unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup train test test-learning test-faults soak test-oldest mutants format lint types mypy fields check bench docs lock clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(CORE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "rlrun needs Python 3.11 or newer as '$(PYTHON)', found: $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one with: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "Python cannot create virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PIP) --quiet --constraint requirements.lock hatchling editables
	$(PIP) --constraint requirements.lock --no-build-isolation --no-compile --editable .
	@rm -f $(VENV)/core-*
	@touch $@

$(STAMP): $(CORE)
	$(PIP) --quiet --requirement requirements.lock
	@rm -f $(VENV)/installed-*
	@touch $@

train: $(CORE)
	$(BIN)/rlrun train $(CONFIG) $(ARGS)

test: setup
	$(PYTEST) --numprocesses $(WORKERS) --dist loadfile

# Single tests go to the workers, not files, of which one would take half of the time. Results are the
# same to the bit: each worker has one thread.
test-learning: setup
	$(PYTEST) -m learning --numprocesses $(WORKERS) --dist worksteal

# Tests that measure what a fault costs; then the table of docs/faults.md is written anew. One worker
# more than elsewhere: they often wait for processes that start or end.
define measure
@mkdir -p build && rm -f build/faults.jsonl
FAULT_FIGURES=$(CURDIR)/build/faults.jsonl $(PYTEST) -m $(1) $(2)
$(BIN)/python -m tests.fault_figures build/faults.jsonl
endef

test-faults: setup
	$(call measure,faults,--numprocesses $$(($(WORKERS) + 1)) --dist loadfile)

soak: setup
	$(call measure,soak,-o faulthandler_timeout=0)

# In an environment of its own; old versions warn about each other, which is no fault of rlrun.
test-oldest:
	$(PYTHON) -m venv --clear build/oldest
	build/oldest/bin/python -m pip install --quiet uv
	build/oldest/bin/uv pip install --quiet --python build/oldest --resolution lowest-direct \
	  --group dev --requirement pyproject.toml --all-extras
	build/oldest/bin/uv pip install --quiet --python build/oldest --no-deps --no-build-isolation --editable .
	build/oldest/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile -W default $(ARGS)

mutants: setup
	$(BIN)/python -m tests.mutation $(ARGS)

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/hadolint Dockerfile

# Side by side: each of the two has one thread.
types:
	$(MAKE) --jobs 2 mypy fields

mypy: setup
	$(BIN)/mypy

fields: setup
	$(BIN)/python -m pytest -m types

check: lint types test

docs: setup
	$(BIN)/python -m rlrun.config.reference
	$(BIN)/python -m rlrun.config.python_reference
	$(PYTHON) -m venv --clear build/docs
	build/docs/bin/python -m pip install --quiet 'mkdocs-material>=9.5,<10'
	build/docs/bin/mkdocs build --strict --quiet

bench: setup
	benchmarks/peers/setup.sh
	set -e; for name in equal_work kinds_of_work replay_work asynchronous_work slow_env scaling sweep start_up time_to_solve parts; do $(BIN)/python -m benchmarks.$$name; done
	$(BIN)/python -m benchmarks.report

# Resolves in an environment of its own. `+cpu` and the like are dropped: they name a build, not a version.
lock:
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/python -m pip install --quiet --upgrade pip
	build/lock/bin/python -m pip install --quiet torch==2.13.0 --group dev --editable '.[$(EXTRAS)]'
	@{ echo "# What \`make setup\` installs: rlrun's dependencies, extras ($(EXTRAS)) and tools."; \
	   echo "# Written by \`make lock\`; pip takes a CPU build of torch wherever its index offers one."; \
	   build/lock/bin/python -m pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//'; } > requirements.lock
	rm -rf build/lock

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
