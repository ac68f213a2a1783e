# Each target makes .venv where there is none, and installs into it what the target needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INTEROP_PYTHON ?= $(PYTHON)
STEPS ?= 20000
STORE ?= runs/pong
GAME ?= pong
SCALE ?= 1
WORKERS ?= logical
BENCH ?=
BENCHMARKS := sizes calls starting loader adapters writing rollouts sequences slices windows statistics prioritized scale packers gpu writers formats ray_buffers reverb
ITERATIONS ?= 1000000
SEED ?=
LZ4 ?=
SANITIZERS := fuzz_codec
SANITIZE := -O2 -g -fsanitize=address,undefined -fno-sanitize-recover=all
SECONDS ?= 10
KERNELS := diskbuffer/native/kernels
# Bytecode is written when a module is first imported, to one place for all processes: pip would compile more than is ever imported.
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# A worker that died (of a test that hung, with the stacks of its threads printed) ends the run: xdist might wait for ever for its tests.
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup --max-worker-restart 0

INTEROP := dreamer lerobot webdataset zarr2

.NOTPARALLEL:
.PHONY: demo test native nightly newest coverage sanitize check bench soak interop docs dist clean

demo: $(VENV)/demo
	$(BIN)/python examples/train_dqn.py --store $(STORE) --steps $(STEPS) --game $(GAME)

test: $(VENV)/test
	$(PYTEST)

# What takes longer: trainings, whole examples, and more of what is tried at random, with other random numbers in each run.
nightly: $(VENV)/test
	$(PYTEST) --nightly

# Adapters, with the newest releases of their libraries, whatever constraints.txt and the extras say. With VENV=.venv-newest, `.venv` keeps
# those that are pinned.
newest: $(VENV)/test
	$(BIN)/python -m pip install --quiet --upgrade torchrl tensordict ray stable-baselines3 sb3-contrib
	$(BIN)/python -m pip install --quiet --upgrade --no-deps tianshou
	$(PYTEST) tests/adapters

# The tests of `test`, one after the other.
coverage: $(VENV)/test
	$(BIN)/python -m pytest -q --cov --cov-report=term:skip-covered

# Kernels and untrusted bytes under AddressSanitizer and UndefinedBehaviorSanitizer, without Python: drivers in tests/native/, each with the
# kernels that it names. ITERATIONS=10000000 takes seven minutes of a core. LZ4=DIRECTORY for liblz4 from its sources, too. Then the
# gather's threads under ThreadSanitizer, for SECONDS.
sanitize: $(SANITIZERS:%=build/sanitize/%) build/sanitize/threads_gather
	for driver in $(SANITIZERS:%=build/sanitize/%); do $$driver $(ITERATIONS) $(SEED) || exit; done
	build/sanitize/threads_gather $(SECONDS) $(SEED)

build/sanitize/fuzz_codec: $(addprefix $(KERNELS)/,codec.cpp lz4.cpp lz4_encoder.cpp picture_chunks.cpp recoding.cpp)

$(SANITIZERS:%=build/sanitize/%): build/sanitize/%: tests/native/%.cpp $(wildcard $(KERNELS)/*.hpp)
	mkdir -p build/sanitize
	$(if $(LZ4),$(CC) $(SANITIZE) -c $(LZ4)/lz4.c -o build/sanitize/lz4.o)
	$(CXX) -std=c++17 -Wall -Wextra $(SANITIZE) -I$(KERNELS) $(filter %.cpp,$^) $(if $(LZ4),-DWITH_LZ4 build/sanitize/lz4.o) -o $@

THREADS_GATHER := $(addprefix $(KERNELS)/,gather.cpp jobs.cpp finishing.cpp byte_ranges.cpp plan.cpp lookup.cpp codec.cpp lz4.cpp picture_chunks.cpp)
build/sanitize/threads_gather: tests/native/threads_gather.cpp $(THREADS_GATHER) $(wildcard $(KERNELS)/*.hpp)
	mkdir -p build/sanitize
	$(CXX) -std=c++17 -Wall -Wextra -Wno-tsan -O1 -g -fsanitize=thread -pthread -I$(KERNELS) $(filter %.cpp,$^) -o $@

# mypy ends with 2 where its workers do not start within 3 seconds, as on a busy machine.
check: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy || { [ $$? = 2 ] && $(BIN)/mypy --num-workers 0; }

# An hour or two of two cores that have nothing else to do; BENCH=--quick for fewer rounds and less data.
bench: $(VENV)/bench
	for name in $(BENCHMARKS); do $(BIN)/python -m bench.$$name $(BENCH) --json bench/$$name.json || exit; done
	$(BIN)/python -m bench.results

# Every promise put to the test, for two and a half hours; `test` and `nightly` run short versions.
soak: $(VENV)/test
	$(BIN)/python -m soak --scale $(SCALE) --json soak/results.json

# With other programs, each in an environment of its own. GDAL's package and the newest LeRobot take INTEROP_PYTHON=python3.12 or newer,
# zarrita.js takes npm.
interop: $(VENV)/test $(VENV)/interop/readers/installed $(INTEROP:%=$(VENV)/interop/%/installed)
	$(PYTEST) -m interop
	$(BIN)/python -m pytest -q tests/formats/interop
	$(BIN)/python -m pytest -q --nightly tests/formats/interop

# The documentation as pages, in docs/_build/html.
docs: $(VENV)/docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

# The wheel and the sdist, in dist/; tests/test_dist.py installs them into empty environments.
dist: $(VENV)/dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf $(VENV) .venv-newest build
	find diskbuffer -name "*.so" -delete

# The native code, built where it is used: in the checkout.
demo test nightly newest coverage check bench soak interop docs dist: native
native: $(VENV)/native
BUILD_NATIVE := $(BIN)/python setup.py --quiet build_ext --inplace && touch $(VENV)/native
$(VENV)/native: $(VENV)/build setup.py $(shell find diskbuffer/native -name "*.pyx" -o -name "*.pxd" -o -name "*.[hc]pp")
	$(BUILD_NATIVE)

$(VENV)/build: $(VENV)/python constraints.txt
	$(INSTALL) pip "setuptools>=77" Cython numpy
	touch $@

$(VENV)/python:
	$(PYTHON) -m venv $(VENV)
	touch $@

OTHER_READERS := tests/store/other_readers
$(VENV)/interop/readers/installed: $(OTHER_READERS)/requirements.txt $(OTHER_READERS)/package.json
	$(INTEROP_PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --requirement $(OTHER_READERS)/requirements.txt
	cp $(OTHER_READERS)/package.json $(@D)
	! command -v npm || npm install --silent --no-package-lock --prefix $(@D)
	touch $@

$(VENV)/interop/lerobot/installed: PYTHON := $(INTEROP_PYTHON)
$(VENV)/interop/%/installed: tests/formats/interop/%.txt
	$(PYTHON) -m venv $(VENV)/interop/$*
	$(VENV)/interop/$*/bin/python -m pip install --quiet --requirement $<
	touch $@

# The native code is compiled while pip installs packages, at a low priority.
$(VENV)/%: pyproject.toml constraints.txt | $(VENV)/build
	(nice $(BUILD_NATIVE)) & MAKE_BUILDS_NATIVE=1 $(INSTALL) --no-build-isolation --editable ".[$*]" && wait $$!
	[ $* != test -a $* != bench ] || $(INSTALL) --no-deps tianshou
	touch $@
