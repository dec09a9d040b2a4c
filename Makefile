# make run    sets up the environment and trains MoFlow on real molecules for a few minutes
# make test   sets up the environment and passes lint, types and tests
# make env    the set-up alone

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: env run test lint test-gpu clean

env: $(READY)

# torch first, with pip: it picks the build that fits the machine. uv then installs the rest in seconds, compiled: where
# PYTHONDONTWRITEBYTECODE is set every process would compile a thousand modules again, which takes it a second.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or later is needed; give it with make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv torch==2.13.0
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[dev]'
	@touch $@

run: env
	$(BIN)/python train.py experiment=quickstart

# A process for each core; the tests of a file stay together, for they share what takes long to make.
test: env lint
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# On a machine with an NVIDIA GPU.
test-gpu:
	python3 -m pytest -m gpu
	python3 -m benchmarks.wgmma_waits

clean:
	rm -rf .venv .pytest_cache .ruff_cache *.egg-info
