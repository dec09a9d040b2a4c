# make run    sets up the environment and trains MoFlow on real molecules for a few minutes
# make test   sets up the environment and passes lint, types and the fast tests
# make test-all    the slow tests and those of clusters too; make lint, make fast    the two parts of make test
# make test-cluster    the tests that need SLURM (Debian's slurmctld, slurmd, slurm-client, munge), submitit or Ray
# make env    the set-up alone: for the CPU, or for the NVIDIA GPU that nvidia-smi lists (GPU= sets up for the CPU there)
#             versions are those of requirements.lock; LATEST=1 makes .venv-latest, of the newest that pyproject.toml allows
#             and a release candidate of Hydra; with it make test runs the fast tests there
# make lock   writes requirements.lock anew, of the newest versions
# make audit  looks the locked versions up in the database of known vulnerabilities
# make test-gpu-all    every option on a GPU; PART=1/3, 2/3 and 3/3 take ten minutes each, ONLY=... some: tests/options
# make test-gpu    the tests for an NVIDIA GPU; GPU_PYTHON=... for another environment than .venv

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := $(if $(LATEST),.venv-latest,.venv)
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# FBGEMM 1.X needs torch 2.(X+5). Its CUDA build 1.6 and torch 2.11.0 are the pair that was measured on GPUs.
GPU = $(shell nvidia-smi -L 2>/dev/null | grep '^GPU ')
CPU_TORCH := $(if $(LATEST),2.14.1,2.13.0)
CPU_FBGEMM := 1.8
CUDA_TORCH := $(if $(LATEST),2.14.1,2.11.0)
CUDA_FBGEMM := $(if $(LATEST),1.9.0,1.6.0)
CUDA_TORCHREC := $(if $(LATEST),1.9.2,1.6.1)

# Not in the lock: torch's build depends on the machine, and these belong to it.
OF_TORCH := torch cuda-bindings cuda-pathfinder cuda-toolkit $(addprefix nvidia-,cublas cuda-cupti cuda-nvrtc \
  cuda-runtime cudnn-cu13 cufft cufile curand cusolver cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx)
UV_VERSION := 0.13.9

.PHONY: env run fast test test-all test-cluster lint test-gpu test-gpu-all lock audit clean

env: $(READY)

# uv installs what is locked, held to its hashes, and torch's own dependencies with it. Then pip takes the build of torch
# that fits the machine. Compiled: where PYTHONDONTWRITEBYTECODE is set every process would compile a thousand modules
# again, which takes it a second. .ready says which versions are there.
$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or later is needed; give it with make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) uv==$(UV_VERSION)
	$(if $(LATEST),$(latest),$(locked))
	$(if $(GPU),$(for_cuda))
	@echo $(if $(LATEST),latest,locked) $(if $(GPU),cuda) > $@

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-warn-conflicts
UV := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python
TORCH = torch==$(if $(GPU),$(CUDA_TORCH),$(CPU_TORCH))

define locked
$(UV) --no-deps --require-hashes --requirement requirements.lock
$(PIP) $(TORCH)
$(UV) --no-deps --no-build-isolation --editable .
endef

define latest
$(PIP) $(TORCH)
$(UV) --editable '.[dev]' $(TORCH) 'hydra-core>=1.4.0rc1' 'omegaconf>=2.4.1rc1'
@echo 'the newest versions are installed, not those of requirements.lock'
endef

# The two builds of FBGEMM are one Python package under two names: the CPU's goes before the CUDA one comes.
define for_cuda
$(BIN)/python -m pip uninstall --quiet --yes fbgemm-gpu-cpu
$(PIP) --no-deps torchrec==$(CUDA_TORCHREC) fbgemm-gpu==$(CUDA_FBGEMM)
@$(BIN)/python -m src.gpu.precompile || echo 'the first runs compile their kernels themselves'
endef

lock: $(READY)
	printf '%s\n' torch==$(CPU_TORCH) 'torchrec==$(CPU_FBGEMM).*' 'fbgemm-gpu-cpu==$(CPU_FBGEMM).*' | \
	  $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev \
	  --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command 'make lock' \
	  $(addprefix --no-emit-package=,$(OF_TORCH)) --constraint - --output-file requirements.lock pyproject.toml

# Needs a network: it asks PyPI.
audit: $(READY)
	$(BIN)/uv tool run pip-audit --strict --disable-pip --no-deps --requirement requirements.lock

run: env
	$(BIN)/python train.py experiment=quickstart

# A process for each core; the tests of a file stay together, for they share what takes long to make.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder
fast: env
	$(PYTEST)

# Side by side: types are checked on one core, which leaves another idle. Where one of the two fails, make says so and
# waits for the other before it ends with an error.
test: env
	@$(MAKE) --no-print-directory --jobs=2 $(if $(LATEST),,lint) fast

test-all: test
	$(PYTEST) -m 'slow and not gpu and not cluster'
	@$(MAKE) --no-print-directory test-cluster

# A copy of the environment: Ray needs old versions of packages that others use too.
CLUSTER := .venv-cluster/.ready
$(CLUSTER): $(READY)
	rm -rf .venv-cluster
	cp -al .venv .venv-cluster
	$(BIN)/uv pip install --quiet --python .venv-cluster/bin/python hydra-submitit-launcher==1.2.0 submitit==1.5.4 \
	  hydra-ray-launcher==1.2.2 ray==2.60.0
	rm $@ && touch $@

test-cluster: env $(CLUSTER)
	.venv-cluster/bin/python -m pytest -m cluster tests/cluster

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# On a machine with an NVIDIA GPU; GPU_PYTHON=python3 takes an environment that is there already.
GPU_PYTHON ?= $(BIN)/python
test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),env)
	$(GPU_PYTHON) -m pytest -m gpu
	$(GPU_PYTHON) -m benchmarks.wgmma

PART ?= 1/1
OUT ?= outputs/options
test-gpu-all: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),env)
	$(GPU_PYTHON) -m tests.options PART=$(PART) OUT=$(OUT) $(if $(ONLY),'ONLY=$(ONLY)') $(if $(filter 1/1,$(PART)),SECONDS=36000)

clean:
	rm -rf .venv .venv-latest .venv-cluster .pytest_cache .ruff_cache *.egg-info
