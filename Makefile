# Each target makes .venv where there is none, and installs into it what the target needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STEPS ?= 20000
STORE ?= runs/pong
GAME ?= pong
SCALE ?= 1
WORKERS ?= logical
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

.PHONY: demo test nightly coverage check bench soak clean

demo: $(VENV)/demo
	$(BIN)/python examples/train_dqn.py --store $(STORE) --steps $(STEPS) --game $(GAME)

test: $(VENV)/test $(VENV)/compiled
	$(PYTEST)

# What takes longer: trainings, whole examples, and more of what is tried at random.
nightly: $(VENV)/test $(VENV)/compiled
	$(PYTEST) --nightly

# The tests of `test`, one after the other.
coverage: $(VENV)/test
	$(BIN)/python -m pytest -q --cov --cov-report=term:skip-covered

check: $(VENV)/test $(VENV)/check $(VENV)/bench
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q --doctest-modules --no-header diskbuffer tests/test_docs.py

bench: $(VENV)/bench
	$(BIN)/python -m bench.sampling --json bench/sampling.json
	$(BIN)/python -m bench.writing --json bench/writing.json
	$(BIN)/python -m bench.scale --json bench/scale.json
	$(BIN)/python -m bench.prioritized --json bench/prioritized.json
	$(BIN)/python -m bench.sequences --json bench/sequences.json
	$(BIN)/python -m bench.passes --json bench/passes.json
	$(BIN)/python -m bench.verification --json bench/verification.json
	$(BIN)/python -m bench.adapters --json bench/adapters.json
	$(BIN)/python -m bench.sizes --json bench/sizes.json
	$(BIN)/python -m bench.sealing --json bench/sealing.json
	$(BIN)/python -m bench.trainings --json bench/trainings.json
	$(BIN)/python -m bench.gpu --json bench/gpu.json
	$(BIN)/python -m bench.cold --json bench/cold.json

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
	[ $* != test ] || $(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps tianshou
	touch $@
