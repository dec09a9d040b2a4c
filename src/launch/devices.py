"""The processes and devices of a topology, and the precision that a device computes in."""

import os
import shlex
import socket
import sys
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from src.errors import UserError
from src.gpu import graph_gaps, tuned_products
from src.launch.ranks import is_fork
from src.parallel import shared_memory
from src.system.group import rank, started_by, world_size
from src.system.workers import cpu_count

if TYPE_CHECKING:
    from pytorch_lightning.plugins.precision import Precision
    from pytorch_lightning.strategies import Strategy

    from src.config import schema
    from src.config.schema import Execution, Topology, TrainConfig

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # of x86, and of Arm
MOST_PER_CORE, RANK_GIB = 4, 0.3  # ranks on a CPU that need no key, and what a process holds after its imports
FIXED_WORKSPACES = ":4096:8", ":16:8"  # of cuBLAS, with which it repeats its results in several streams


class Devices(NamedTuple):
    """What Lightning is to use of this machine."""

    strategy: "Strategy"
    precision: "Precision"


def set_up_devices(config: "TrainConfig") -> Devices:
    """Checks that this process is one of the topology's, and sets precision and execution of the whole process.

    Raises UserError where the devices are missing or cannot compute in the precision.
    """
    from src.parallel.strategies import HybridStrategy, OneDevice

    accelerator = config.hardware.accelerator
    check_topology(config.trainer, accelerator)
    set_precision(config.precision, accelerator)
    set_execution(config.execution, accelerator)
    precision = precision_plugin(config.precision, accelerator)
    if config.world_size > 1:
        of_rank = config.datamodule["batch_size"], config.hardware.memory_gib
        strategy = HybridStrategy(*of_rank, patience_s=config.trainer.patience_s)
        if is_fork() and started_by() == "torchrun":  # of `train.py`
            strategy.meet_ahead(torch.device(accelerator, int(os.environ["LOCAL_RANK"])))
        return Devices(strategy, precision)
    return Devices(OneDevice("cuda:0" if accelerator == "cuda" else "cpu"), precision)


def set_execution(execution: "Execution", accelerator: str) -> None:
    """Switches what is done for the whole process on or off: shared memory, reset of queues, deterministic operations.

    To be called before the process first multiplies on its GPU or joins a group. Raises UserError for a CUDA graph on a
    CPU.
    """
    check_graph(execution, accelerator)
    shared_memory.enabled = execution.exchange == "auto"
    graph_gaps.enabled = execution.graph_gaps == "auto"
    tuned_products.enabled = execution.products == "auto"
    if execution.deterministic:
        if os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in FIXED_WORKSPACES:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = FIXED_WORKSPACES[0]
        os.environ["NCCL_NVLS_ENABLE"] = "0"  # no sums in the NVLink switch: their order is not documented
        torch.backends.cudnn.benchmark = False
        memory: Any = torch.utils.deterministic
        memory.fill_uninitialized_memory = False  # it takes time, and no result may depend on such memory
    if execution.deterministic != torch.are_deterministic_algorithms_enabled():  # the call loads torch's compiler
        torch.use_deterministic_algorithms(execution.deterministic)  # torch.compile and FBGEMM obey it too


def begin_products(config: "TrainConfig") -> threading.Thread | None:
    """Begins to load cuBLAS, which a first step would wait for, beside the making of the network; returns the thread.

    To be called after `set_up_devices`. None without a GPU, on several, or with REPRISE_PLAIN_START set.
    """
    if config.hardware.accelerator != "cuda" or config.world_size > 1 or os.environ.get("REPRISE_PLAIN_START"):
        return None
    half = {"16": torch.float16, "bf16": torch.bfloat16}.get(config.precision.lightning.partition("-")[0])
    dtypes = [torch.float32, *([half] if half else [])]
    thread = threading.Thread(target=multiply, args=(torch.device("cuda", 0), dtypes), name="cuBLAS", daemon=True)
    thread.start()
    return thread


def multiply(device: torch.device, dtypes: Sequence[torch.dtype]) -> None:
    """Multiplies small matrices of each type; keeps no memory and draws no random numbers."""
    with suppress(RuntimeError):  # no memory, say, as the first step will tell
        for dtype in dtypes:
            ones = torch.ones(16, 16, device=device, dtype=dtype)
            torch.mm(ones, ones)
        if device.type == "cuda":  # the handle is the next thread's that asks for one; its workspace is of this stream
            cast(Any, torch._C)._cuda_clearCublasWorkspaces()


def check_graph(execution: "Execution", accelerator: str) -> None:
    """Raises UserError for a CUDA graph without a GPU."""
    if execution.graph == "on" and accelerator != "cuda":
        raise UserError("execution.graph=on needs an NVIDIA GPU; give execution.graph=auto")


def without_order(error: BaseException, model: str) -> BaseException:
    """Returns a UserError in place of torch's refusal of an operation under `execution.deterministic`, else `error`."""
    operation, refused, _ = str(error).partition(" does not have a deterministic implementation")
    if not refused:
        return error
    return UserError(
        f"execution.deterministic=true: model={model} uses {operation.split()[-1]}, which torch computes in no fixed "
        "order; give execution.deterministic=false"
    ).with_traceback(error.__traceback__)


def check_devices(trainer: "Topology", accelerator: str) -> None:
    """Raises UserError unless this machine has the devices that the topology wants of each node."""
    gpus = torch.cuda.device_count()
    if accelerator == "cuda" and gpus < trainer.devices:
        raise UserError(f"trainer={trainer.name} wants {trainer.devices} GPU(s) on each node, this machine has {gpus}; "
                        f"choose another trainer")  # fmt: skip
    if accelerator != "cuda" and trainer.devices > MOST_PER_CORE * cpu_count() and not trainer.crowded:
        raise UserError(
            f"trainer.devices={trainer.devices} starts as many processes on {cpu_count()} cores, each with about "
            f"{RANK_GIB} GiB before its model and data; give fewer, or trainer.crowded=true"
        )


def check_topology(trainer: "Topology", accelerator: str) -> None:
    """Raises UserError unless this process is one of as many as the topology names, on enough devices."""
    check_devices(trainer, accelerator)
    world, started = trainer.num_nodes * trainer.devices, world_size()
    if started == world:
        return
    here = f"{torch.cuda.device_count()} GPU(s) here" if accelerator == "cuda" else "no GPU here, they run on CPUs"
    commands = start_commands(trainer, sys.argv[1:], socket.gethostname())
    raise UserError(
        f"trainer={trainer.name} is {world} processes, {started} started ({here}); start it with: {commands}"
    )


def start_commands(trainer: "Topology", arguments: list[str], host: str) -> str:
    """Returns the commands that start a topology, by torchrun and by SLURM; `host` is the first node."""
    train = shlex.join(["train.py", *arguments])
    if trainer.num_nodes == 1:
        where, nodes = "", "--standalone"
    else:
        where = f" (on each of {trainer.num_nodes} nodes, {host} the first)"
        nodes = f"--nnodes={trainer.num_nodes} --rdzv-backend=c10d --rdzv-endpoint={host}:29500"
    by_torchrun = f"torchrun {nodes} --nproc-per-node={trainer.devices} {train}{where}"
    return f"{by_torchrun}   or: {sbatch_command(trainer, arguments)}"


def sbatch_command(trainer: "Topology", arguments: Sequence[str]) -> str:
    """Returns the command that starts a topology by SLURM."""
    gpus = f" --gpus-per-node={trainer.devices}" if torch.cuda.is_available() else ""
    srun = shlex.quote(f"srun --kill-on-bad-exit=1 python {shlex.join(['train.py', *arguments])}")
    return f"sbatch --nodes={trainer.num_nodes} --ntasks-per-node={trainer.devices}{gpus} --wrap {srun}"


def set_precision(precision: "schema.Precision", accelerator: str) -> None:
    """Sets the matmul flags, so that the label is true. Raises UserError where the device cannot do it."""
    if precision.name == "tf32" and (accelerator != "cuda" or torch.cuda.get_device_capability() < (8, 0)):
        raise UserError("precision=tf32 needs an NVIDIA GPU of compute capability 8.0 or later; use precision=fp32")
    if accelerator == "cpu" and rank() == 0 and (note := slow_on_cpu(precision.name, cpu_flags())):
        print(f"note: {note}", flush=True)
    torch.set_float32_matmul_precision(precision.matmul)
    torch.backends.cudnn.allow_tf32 = precision.cudnn_tf32


def slow_on_cpu(precision: str, flags: Collection[str]) -> str | None:
    """Returns a note on a precision that is slow on a CPU with these flags; None for the others."""
    if precision in ("amp", "fp16"):
        return f"precision={precision} is slow on a CPU: choose precision=fp32" + (
            ", or bf16, which this CPU has instructions for" if BF16_FLAGS.intersection(flags) else ""
        )
    if precision == "bf16" and not BF16_FLAGS.intersection(flags):
        return "precision=bf16 is slow on this CPU, which has no instructions for it: choose precision=fp32"
    return None


def cpu_flags() -> set[str]:
    """Returns the instruction sets of the CPU by Linux's names; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.partition(":")[2].split()}


def precision_plugin(precision: "schema.Precision", accelerator: str) -> "Precision":
    """Returns Lightning's precision plugin. By name, Lightning would take bfloat16 instead of float16 on a CPU."""
    from pytorch_lightning.plugins.precision import HalfPrecision, MixedPrecision, Precision

    class Float16(HalfPrecision):
        """Lightning's own refuses batches that hold a frozen dataclass, as the layout of clicks is."""

        def convert_input(self, data: Any) -> Any:
            return tree_map_only(Tensor, lambda tensor: tensor.half() if tensor.is_floating_point() else tensor, data)

    if precision.lightning.endswith("-mixed"):
        device, scaler = "cuda" if accelerator == "cuda" else "cpu", None
        if precision.lightning == "16-mixed":
            scaler = torch.amp.GradScaler(
                device, precision.loss_scale, growth_interval=precision.loss_scale_growth_steps
            )
        return MixedPrecision(cast(Any, precision.lightning), device, scaler)
    return Float16("16-true") if precision.lightning == "16-true" else Precision()
