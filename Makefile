# make run    sets up the environment and trains MoFlow on real molecules for a few minutes
# make test   sets up the environment and passes lint, types and the fast tests
# make test-all    the slow tests too
# make env    the set-up alone: for the CPU, or for the NVIDIA GPU that nvidia-smi lists (GPU= sets up for the CPU there)
# make test-gpu    the tests for an NVIDIA GPU; GPU_PYTHON=... for another environment than .venv

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready

# FBGEMM 1.X needs torch 2.(X+5). Its CUDA build 1.6 and torch 2.11.0 are the pair that was measured on GPUs.
GPU = $(shell nvidia-smi -L 2>/dev/null | grep '^GPU ')
CPU_TORCH := 2.13.0
CUDA_TORCH := 2.11.0
CUDA_FBGEMM := 1.6.0
CUDA_TORCHREC := 1.6.1

.PHONY: env run test test-all lint test-gpu clean

env: $(READY)

# torch first, with pip: it picks the build that fits the machine. uv then installs the rest in seconds, compiled: where
# PYTHONDONTWRITEBYTECODE is set every process would compile a thousand modules again, which takes it a second.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or later is needed; give it with make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(if $(GPU),$(env_cuda),$(env_cpu))
	@touch $@

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python

define env_cpu
$(PIP) uv torch==$(CPU_TORCH)
	$(UV) --editable '.[dev]'
endef

# The two builds of FBGEMM are one Python package under two names: the CPU's goes before the CUDA one comes.
define env_cuda
$(PIP) uv torch==$(CUDA_TORCH)
	$(UV) --editable '.[dev]' torch==$(CUDA_TORCH) torchrec==$(CUDA_TORCHREC)
	$(BIN)/python -m pip uninstall --quiet --yes fbgemm-gpu-cpu
	$(PIP) --no-deps fbgemm-gpu==$(CUDA_FBGEMM)
endef

run: env
	$(BIN)/python train.py experiment=quickstart

# A process for each core; the tests of a file stay together, for they share what takes long to make.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder
test: env lint
	$(PYTEST)

test-all: test
	$(PYTEST) -m 'slow and not gpu'

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# On a machine with an NVIDIA GPU; GPU_PYTHON=python3 takes an environment that is there already.
GPU_PYTHON ?= $(BIN)/python
test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),env)
	$(GPU_PYTHON) -m pytest -m gpu
	$(GPU_PYTHON) -m benchmarks.wgmma_waits

clean:
	rm -rf .venv .pytest_cache .ruff_cache *.egg-info
