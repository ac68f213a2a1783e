# Each target makes .venv where there is none, and installs into it what the target needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STEPS ?= 20000
STORE ?= runs/pong
GAME ?= pong
SCALE ?= 1
WORKERS ?= logical
BENCH ?=
BENCHMARKS := sizes calls curves adapters trainings writing verification prioritized sequences passes scale plan sealing gpu cold
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

INTEROP := lerobot

.PHONY: demo test nightly interop coverage check bench bench-compare soak clean

demo: $(VENV)/demo
	$(BIN)/python examples/train_dqn.py --store $(STORE) --steps $(STEPS) --game $(GAME)

test: $(VENV)/test $(VENV)/compiled
	$(PYTEST)

# What takes longer: trainings, whole examples, and more of what is tried at random.
nightly: $(VENV)/test $(VENV)/compiled
	$(PYTEST) --nightly

# Libraries whose formats are read and written, each in an environment of its own, as their pins exclude ours.
interop: $(VENV)/test $(VENV)/compiled $(INTEROP:%=$(VENV)/interop/%/installed)
	$(BIN)/python -m pytest -q --nightly tests/formats/interop

$(VENV)/interop/%/installed: tests/formats/interop/%.txt
	$(PYTHON) -m venv $(VENV)/interop/$*
	$(VENV)/interop/$*/bin/python -m pip install --quiet --requirement $<
	touch $@

# The tests of `test`, one after the other.
coverage: $(VENV)/test
	$(BIN)/python -m pytest -q --cov --cov-report=term:skip-covered

check: $(VENV)/test $(VENV)/check $(VENV)/bench
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q --doctest-modules --no-header diskbuffer tests/test_docs.py

# Meant to take less than an hour on two cores that have nothing else to do. BENCH=--quick for fewer rounds and less data.
bench: $(VENV)/bench
	$(BIN)/python -m diskbuffer warmup
	for name in $(BENCHMARKS); do $(BIN)/python -m bench.$$name $(BENCH) --json bench/$$name.json || exit; done
	$(BIN)/python -m bench.results

# What changed since the figures that were copied elsewhere: make bench-compare OLD=DIRECTORY
bench-compare: $(VENV)/bench
	$(BIN)/python -m bench.results --compare $(OLD)

# Every promise put to the test, for an hour and a half; `test` and `nightly` run short versions.
soak: $(VENV)/test
	$(BIN)/python -m soak --scale $(SCALE) --json soak/results.json

clean:
	rm -rf $(VENV)

# Compiled once, before several processes do so at the same time; and anew, as numba's cache does not see what a function calls.
$(VENV)/compiled: $(VENV)/test $(shell find diskbuffer -name "*.py")
	find diskbuffer -name "*.nb[ci]" -delete
	$(BIN)/python -m diskbuffer warmup
	touch $@

$(VENV)/python:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/%: $(VENV)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$*]"
	[ $* != test -a $* != bench ] || $(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps tianshou
	touch $@
