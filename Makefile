# make demo   sets everything up and shows the main job on real data
# make retrain-demo shows six monthly slots of a scheduled retraining on real data
# make test   sets everything up and runs the linter and the tests; 5 minutes on two cores
# make near   the tests nearest to what changed since main, in 20 s; SINCE=COMMIT names another start
# make types  checks the types, as CI does
# make matrix the longer tests: many seeds, many kills, whole processes, the wheel
# make gpu    the tests and benchmarks that need a CUDA device
# make gpu-kit  .gpu/: what a machine with a device and without a network lacks for benchmarks/accelerator/kit/*.sh
# make soak-quarter  one quarter of the longest tests, in turn; QUARTER=1 to 4 names one
# make soak   all four quarters
# make docs   writes the generated reference and builds the docs site: build/site/index.html
# VENV=FOLDER uses an environment that exists as it is, and installs nothing into it.
VENV   ?= .venv
PYTHON ?= python3
# Paths are relative or quoted: the clone's folder may have spaces.
BIN    := "$(VENV)/bin"
STAMP  := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-for-demos
GIVEN  := $(if $(filter file,$(origin VENV)),,$(shell test -x $(BIN)/python && echo given))

# What is imported from the clone is compiled once, not by each process of the tests.
unexport PYTHONDONTWRITEBYTECODE

# Several of these are also names of folders.
.PHONY: demo retrain-demo near test units flows matrix matrix-units matrix-flows gpu gpu-kit soak soak-quarter lint types format docs setup setup-demo clean

demo: setup-demo
	$(BIN)/python -m examples.demo

retrain-demo: setup-demo
	$(BIN)/python -m examples.demo --retraining

# Flow tests mostly wait, so the others run at the same time, at a lower priority.
test: lint
	$(MAKE) --jobs 2 flows units

near: setup
	$(BIN)/python -m tests.near $(SINCE)

units: setup
	nice -n 10 $(BIN)/python -m pytest -n 4 --dist worksteal --max-worker-restart 0 --ignore tests/flows

flows: setup
	$(BIN)/python -m pytest tests/flows

# Each file of these starts a Prefect, a Slurm or a Ray of its own, or builds a wheel.
WITH_SERVERS := tests/packaging tests/flows tests/launch/slurm tests/launch/ray

# One after the other: each has two whole Prefects, or two busy processes.
matrix:
	$(MAKE) matrix-units
	$(MAKE) matrix-flows

matrix-units: setup
	$(BIN)/python -m pytest -m 'matrix and not soak' -n 3 --dist loadscope --no-loadscope-reorder --max-worker-restart 0 --durations 20 $(WITH_SERVERS:%=--ignore %)

matrix-flows: setup
	$(BIN)/python -m pytest -m 'matrix and not soak' -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 20 $(WITH_SERVERS)

# One quarter of the longest tests, in turn.
soak-quarter: setup
	$(BIN)/python -m tests.support.soak $(QUARTER)

# More than an hour, on a machine that does nothing else.
soak: setup
	$(BIN)/python -m pytest -m soak

# On one device, a few minutes. Elsewhere everything is skipped, with the reason.
gpu: setup
	$(BIN)/python -m pytest -m "gpu and not alone" -n 12 --durations 10 tests/gpu tests/interop/test_import_weights.py
	$(BIN)/python -m pytest -m "gpu and alone" tests/gpu
	$(BIN)/python -m benchmarks.accelerator --json build/gpu.json
	$(BIN)/python -m benchmarks.accelerator.peers --json build/gpu-peers.json

gpu-kit:
	benchmarks/accelerator/kit/prepare.sh

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy -p segue -p benchmarks -p website -p examples.demo

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The variable silences a message of the theme about its successor.
docs: setup
	$(BIN)/python -m website.reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is in build/site; with search: $(BIN)/python -m http.server --directory build/site --bind 127.0.0.1"

setup: $(if $(GIVEN),,$(STAMP))

# What the demos need is installed in half the time of everything.
setup-demo: $(if $(GIVEN),,$(DEMO_STAMP))

$(DEMO_STAMP): pyproject.toml constraints.txt
	$(call install,prefect$(comma)data)
	@touch "$(DEMO_STAMP)"

$(STAMP): pyproject.toml constraints.txt
	$(call install,s3$(comma)gcs$(comma)azure$(comma)prefect$(comma)data$(comma)docs$(comma)dev)
	@touch "$(DEMO_STAMP)" "$(STAMP)"

comma := ,

# Compiled by all processors, which pip does not do: where PYTHONDONTWRITEBYTECODE is set, as in many images, what is not
# compiled here is compiled by every process that imports it.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "segue needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv "$(VENV)"
	@echo "installing pinned dependencies into $(VENV) (a few minutes the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[$(1)]'
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' "$(VENV)"/lib/python3*/site-packages || true
endef

clean:
	rm -rf .venv .segue .mypy_cache .ruff_cache .pytest_cache
