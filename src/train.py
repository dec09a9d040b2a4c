"""`train.py trainer=1x4` on one machine: starts its ranks, and answers for those that cannot.

What a rank does, a person could start by hand with torchrun. Lightning's own launcher would run a whole sweep again in
each rank.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from src.cli import DEBUGGING, end_as_command, fail, run_job
from src.config.hydra_files import FOLDER, remove_unbegun
from src.config.settings import config_options, given_overrides
from src.config.values import check_training, target_of
from src.gpu import precompile
from src.launch.failures import ASKED, Failure, memory_ran_out
from src.launch.ranks import Asked, Ranks, RanksFailed, begin_cuda, has_computed, may_fork
from src.measure import starting
from src.system.group import check_loopback, started_by
from src.system.home import ROOT
from src.system.interpreter import python
from src.system.loading import loading
from src.system.workers import cpu_count

if TYPE_CHECKING:
    from src.config.schema import TrainConfig
    from src.report.record import Record


def train_here_or_on_ranks(config: DictConfig) -> None:
    """Trains in this process, or starts a process for each device of one machine and waits for them."""
    begin_s = time.perf_counter()
    if config.fix_hp is not None and config.fix_hp.name == "auto":
        with loading():
            from src.sweep.largest import settle_batch

        config = settle_batch(config, given_overrides())
    searched_s = time.perf_counter() - begin_s
    if config.trainer.num_nodes == 1 < config.trainer.devices and started_by() is None:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cpu_count() // config.trainer.devices)))
        with loading():
            run = check_training(config)  # before any process is started
        start_ranks(run, config)
        return
    is_alone = started_by() is None
    compiles = is_alone and has_pending_kernels(config)
    if is_alone and not compiles:
        begin_cuda_of(config)  # beside the imports: no forks follow
    with loading():
        from src.run import train
    if compiles:
        begin_kernels(config)
        begin_cuda_of(config)  # after the forks that compile kernels
    if is_alone:
        begin_hash(config)
    starting.ended("imports")
    has_computed()
    train(config, searched_s)
    if started_by() is None:  # else other ranks share the folder
        remove_unbegun()  # of a run that was done before


def start_ranks(config: "TrainConfig", composed: DictConfig) -> None:
    """Runs the configured job on its ranks. Raises SystemExit unless all of them succeed, after a record is there.

    Args:
        composed: the config before it was checked.
    """
    begin_s = time.time()
    check_loopback()
    with loading(), nvml_asked():
        import torch

        from src.launch.devices import check_devices, check_graph

        accelerator = "cuda" if config.hardware.accelerator != "cpu" and torch.cuda.is_available() else "cpu"
        check_devices(config.trainer, accelerator)
    check_graph(config.execution, accelerator)
    if may_fork():
        import_for_ranks(composed)
        if has_pending_kernels(composed):
            begin_kernels(composed)
    work = partial(train_forked, composed) if may_fork() else train_anew  # imports may have begun CUDA
    starting.ended("imports")
    try:
        with Ranks(config.trainer.devices, work) as ranks:
            ranks.wait(config.trainer.patience_s)
    except Asked as asked:
        sys.exit(128 + asked.signum)
    except RanksFailed as failed:
        sys.exit(answer_for(config, composed, failed.failure, begin_s))
    remove_unbegun()  # of a run that was done before


@contextmanager
def nvml_asked() -> Iterator[None]:
    """Has torch ask NVML whether there are GPUs: CUDA works in no fork of a process that asked CUDA."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def has_pending_kernels(config: DictConfig) -> bool:
    """Returns whether Triton kernels of a case are to be compiled in forks of this process before it begins CUDA."""
    task = OmegaConf.select(config, "model.task._target_")
    may = config.hardware.accelerator != "cpu" and isinstance(task, str) and started_by() is None and may_fork()
    case = task, config.execution.kernels, config.precision.name
    return may and bool(precompile.pending(*case, partial(OmegaConf.select, config)))


def begin_kernels(config: DictConfig) -> None:
    """Begins to compile the Triton kernels of a case in other processes."""
    with loading():
        case = config.model.task._target_, config.execution.kernels, config.precision.name
        precompile.begin(*case, partial(OmegaConf.select, config))


def begin_cuda_of(config: DictConfig, number: int = 0) -> None:
    """Begins CUDA on a visible GPU, in a thread."""
    if config.hardware.accelerator != "cpu":
        begin_cuda(number)


def begin_hash(config: DictConfig) -> None:
    """Begins to hash Triton's files, which the first step on a GPU waits for, in a thread."""
    if config.hardware.accelerator != "cpu" and config.execution.kernels != "off":
        precompile.hash_triton_ahead()


def import_for_ranks(config: DictConfig) -> None:
    """Imports what the ranks of a checked config need, once for all of them."""
    with loading():
        from src import run  # noqa: F401

        task = target_of("model.task", config.model.task["_target_"])
        for module in getattr(task, "imported_on_ranks", ()):
            with suppress(ImportError):  # which a rank tells, if it needs it
                import_module(module)


def train_forked(config: DictConfig) -> None:
    """Trains on one rank, in a fork of the process that was asked to."""
    import torch

    from src.run import train

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # something may have loaded OpenMP before it was set
    begin_cuda_of(config, int(os.environ["LOCAL_RANK"]))
    begin_hash(config)
    end_as_command(lambda: run_job(train, config))


def train_anew() -> None:
    """Trains on one rank, in a process that begins with the command."""
    if not DEBUGGING:
        os.environ.pop("HYDRA_FULL_ERROR", None)  # in ranks it asks for tracebacks
    command = python("-u", str(ROOT / "train.py"), *overrides())
    os.execv(command[0], command)


def overrides() -> list[str]:
    """Returns the overrides of this job, which may be one of a sweep, with its folder."""
    folder = os.path.relpath(HydraConfig.get().runtime.output_dir)
    return [*given_overrides(), f"hydra.run.dir={folder}", *config_options()]


def answer_for(config: "TrainConfig", composed: DictConfig, failure: Failure, begin_s: float) -> int:
    """Says why the ranks ended, on stderr and in the record where rank 0 did not; returns the exit code."""
    from src.launch.going_on import way_on
    from src.report.record import GoOn, RunError, read_record, write_record
    from src.report.text import going_on

    file = Path(config.output_dir) / "result.json"
    written = written_since(file, begin_s)
    begun = written_since(file.parent / FOLDER / "config.yaml", begin_s)
    is_mistake = failure.error["type"] == "UserError" and not begun
    record = read_record(file) if written else record_without_run(composed)
    if written and record.status == "interrupted" and failure.exitcode in ASKED:
        return failure.exitcode if failure.exitcode > 0 else 128 + signal.SIGTERM
    if (not written or failure.rank != 0) and not (is_mistake and file.exists()):  # then of an earlier run
        error = replace(RunError(**failure.error), message=f"rank {failure.rank}: {failure.error['message']}")
        status = "oom" if memory_ran_out(f"{error.type}: {error.message}") else "failed"
        if record.go_on is None or record.go_on.checkpoint is None:
            record = replace(record, go_on=GoOn(**way_on(config, newest_saved(config, begin_s))))
        record = replace(record, status=status, error=error)
        write_record(record, file)
    if failure.error["type"] == "UserError":
        remove_unbegun()
        return fail(failure.error["message"])
    print(f"rank {failure.rank} of {config.trainer.devices} failed and ended the others", file=sys.stderr)
    print(failure.traceback or failure.error["message"], file=sys.stderr)
    print(f"record: {file}", going_on(record), sep="\n", file=sys.stderr)
    return 1


def newest_saved(config: "TrainConfig", begin_s: float) -> Path | None:
    """Returns the checkpoint that the ranks wrote since then, or else the one that they went on from."""
    from src.training.checkpoints import newest_checkpoint

    folder = Path(config.output_dir)
    last = folder / "checkpoints" / "last.ckpt"
    if written_since(last, begin_s):
        return last
    if config.ckpt_path:
        return Path(config.ckpt_path)
    return newest_checkpoint(Path(config.output_root) / config.model["name"], folder) if config.resume else None


def written_since(file: Path, begin_s: float) -> bool:
    """Returns whether a file was written since then."""
    return file.exists() and file.stat().st_mtime >= begin_s


def record_without_run(config: DictConfig) -> "Record":
    """Returns the record of a run whose ranks died before writing one."""
    from src.config.complete import complete
    from src.measure.clock import Clock
    from src.run import make_record

    return make_record(complete(config), Clock(), None, "failed", None)
