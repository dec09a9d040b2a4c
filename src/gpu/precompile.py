"""Compiles the Triton kernels of a model's published cases on all cores, while the run that needs them begins.

Each model's `fast/kernels.json` lists them with what Triton specialises them on (by `benchmarks/kernel_lists.py`):
constants, whose names are in capitals, and of other arguments the type and whether they are 1 or multiples of 16.
A kernel with `when` is of the cases in which these keys of the config have these values.
They are compiled by forks of a run that has not begun CUDA, which need no GPU, and lie in Triton's cache on disk then.
The run's first step waits for them.

python -m src.gpu.precompile [MODEL ...] [--capability 90]      all of them now, for a GPU that need not be here
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from select import select
from typing import Any

from src.system.signals import end_with_parent
from src.system.workers import cpu_count

LIST = "kernels.json"
DEVICE = "/dev/nvidiactl"  # there is one where there are NVIDIA GPUs
MODELS = Path(__file__).resolve().parents[1] / "models"
PRECISIONS = ("amp", "tf32", "bf16")
MOST_S = 600  # that a run waits
OPTIONS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "launch_pdl", "launch_cooperative_grid")
DIVISIBLE = [["tt.divisibility", 16]]
# torch's names
TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "u8": "uint8", "i32": "int32", "i64": "int64"}

Option = Callable[[str], Any]

_running: int | None = None  # a pipe's end, which other ranks inherit: it is at its end once the kernels are compiled
_hashing: threading.Thread | None = None


def begin(task: str, kernels: str | Sequence[str], precision: str, option: Option = lambda _: None) -> None:
    """Begins to compile the kernels of a case that were not compiled on this machine yet; to be called before CUDA is.

    Args:
        task: the class of the model's task, `src.models.dlrm.task.DLRMTask` say.
        kernels: `execution.kernels`.
        precision: its name; there are lists of `PRECISIONS`.
        option: returns the config's value of a key.
    """
    global _running
    if not (groups := pending(task, kernels, precision, option)):
        return
    entries = [entry for group in groups.values() for entry in group]
    import_kernels(entries)
    reader, writer = os.pipe()
    try:
        child = os.fork()
    except OSError:  # no more processes: the run compiles its kernels itself
        os.close(reader)
        os.close(writer)
        return
    if child == 0:
        try:
            end_with_parent(os.getppid(), signal.SIGKILL)
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in range(3):  # who reads this run's output must not wait for these processes
                os.dup2(nothing, number)
            compile_all(entries, list(groups), max(1, cpu_count() - 1), [build_driver])
        finally:
            os._exit(0)
    os.close(writer)
    _running = reader


def pending(
    task: str, kernels: str | Sequence[str], precision: str, option: Option = lambda _: None
) -> dict[Path, list[dict[str, Any]]]:
    """Returns the kernels of a case that are to be compiled, by the files that will say that they are; see `begin`.

    Imports neither torch nor Triton.
    """
    folder = fast_folder(task)
    if kernels == "off" or not (folder / LIST).is_file() or find_spec("triton") is None or not (here := capability()):
        return {}
    groups = grouped(folder, here, precision)
    return {done: entries for done, entries in groups.items() if is_for(entries[0], option) and not done.exists()}


def fast_folder(task: str) -> Path:
    """Returns the folder `fast` beside a task's module, without importing its packages; one that there may not be."""
    package, *parts = task.split(".")[:-2] or ["none"]
    with suppress(ValueError):  # of a module without a spec
        if spec := find_spec(package):
            return Path(next(iter(spec.submodule_search_locations or ["none"])), *parts, "fast")
    return Path("none")


def hash_triton_ahead() -> None:
    """Begins to hash Triton's files, to be called after all forks: 460 MB, whose hash a cached kernel is found by.

    A thread does it without Python's lock, beside the making of the network: 0.4 s of a first step. Not so with
    REPRISE_PLAIN_START set, and without an NVIDIA GPU.
    """
    global _hashing
    if not os.environ.get("REPRISE_PLAIN_START") and Path(DEVICE).exists() and find_spec("triton") is not None:
        _hashing = threading.Thread(target=hash_triton, name="Triton's hash", daemon=True)
        _hashing.start()


def hash_triton() -> None:
    """Has Triton hash its files, which it does once in a process."""
    with suppress(ImportError, AttributeError, OSError):  # of another version, or told when a kernel is compiled
        import_module("triton.runtime.cache").triton_key()


def wait() -> None:
    """Waits for the kernels that `begin` began to compile: who needs one meanwhile would compile it a second time."""
    global _running, _hashing
    if _hashing is not None:
        _hashing.join()
        _hashing = None
    if _running is not None:
        select([_running], [], [], MOST_S)
        os.close(_running)
        _running = None


def listed(folder: Path, capability: int, precision: str) -> list[dict[str, Any]]:
    """Returns the kernels of a model's `fast` folder for a chip and a precision."""
    entries = json.loads((folder / LIST).read_text())
    return [entry for entry in entries if entry["capability"] == capability and precision in entry["precisions"]]


def grouped(folder: Path, capability: int, precision: str) -> dict[Path, list[dict[str, Any]]]:
    """Returns the kernels of `listed` with the same `when` together, by the file that says that they are compiled."""
    groups = dict[str, list[dict[str, Any]]]()
    for entry in listed(folder, capability, precision):
        groups.setdefault(json.dumps(entry.get("when", {}), sort_keys=True), []).append(entry)
    return {done_file(folder, capability, precision, when): entries for when, entries in groups.items()}


def is_for(entry: Mapping[str, Any], option: Option) -> bool:
    """Returns whether a kernel is of a case with these values of the config."""
    return all(option(key) == value for key, value in entry.get("when", {}).items())


def import_kernels(entries: Sequence[Mapping[str, Any]]) -> None:
    """Imports the modules of kernels once for all forks."""
    for name in {entry["kernel"].partition(":")[0] for entry in entries}:
        import_module(name)


def compile_all(
    entries: Sequence[Mapping[str, Any]],
    done: Sequence[Path],
    processes: int,
    others: Sequence[Callable[[], object]] = (),
) -> bool:
    """Compiles kernels side by side, after `others`, and notes it in the files `done`; returns whether all could be."""
    could = side_by_side([*others, *(partial(compile_kernel, entry) for entry in entries)], processes)
    for file in done if could else ():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return could


def capability() -> int:
    """Returns the compute capability of the first visible GPU, 90 say, without beginning CUDA; 0 without a GPU."""
    import pynvml

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        by_name = pynvml.nvmlDeviceGetHandleByUUID
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(first)) if first.isdigit() else by_name(first)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return 10 * major + minor
    return 0


def done_file(folder: Path, capability: int, precision: str, when: str = "{}") -> Path:
    """Returns the file in Triton's cache that says that the kernels of this `when`, as they are now, were compiled."""
    sources = hashlib.sha256(version("triton").encode())
    for file in sorted([*folder.glob("*.py"), *Path(__file__).parent.glob("*.py"), folder / LIST]):
        sources.update(file.read_bytes())
    sources.update(when.encode())
    return cache_folder() / "reprise" / f"{sources.hexdigest()}_{capability}_{precision}"


def cache_folder() -> Path:
    """Returns Triton's `knobs.cache.dir`, without importing Triton."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))


def side_by_side(jobs: Sequence[Callable[[], object]], processes: int) -> bool:
    """Does jobs, each process the next one that nobody has begun; returns whether all could be done.

    A list begins with the kernels that take longest, so that no process is left alone with one.
    """
    tickets, writer = os.pipe()
    for number in range(len(jobs)):
        os.write(writer, number.to_bytes(2, "little"))
    os.close(writer)
    children = list[int]()
    for _ in range(min(processes, len(jobs))):
        if (child := os.fork()) == 0:
            code = 1
            try:
                end_with_parent(os.getppid(), signal.SIGKILL)
                while ticket := os.read(tickets, 2):
                    jobs[int.from_bytes(ticket, "little")]()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    return not any([os.waitpid(child, 0)[1] for child in children])


def build_driver() -> None:
    """Has a C compiler build what Triton calls CUDA by, unless its cache has it."""
    import_module("triton.backends.nvidia.driver").CudaUtils()


def compile_kernel(entry: Mapping[str, Any]) -> Any:
    """Compiles a kernel for a GPU that need not be there, as its launch would; returns what Triton made of it.

    This process launches no kernel afterwards: Triton has no device any more.
    """
    from triton.runtime import driver

    driver.set_active(NoDevice(entry["capability"]))  # pyright: ignore[reportArgumentType]
    arguments = {name: argument(kind) for name, kind in entry["arguments"].items()}
    constants = {name: constant(value) for name, value in entry["constants"].items()}
    compiled = named(entry["kernel"]).warmup(grid=(1,), **arguments, **constants, **entry["options"])
    build_launcher(compiled)
    return compiled


class NoDevice:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


class Pointer:
    """A tensor of which Triton sees the type, and whether its address is a multiple of 16."""

    def __init__(self, kind: str, address: int) -> None:
        import torch

        self.dtype, self.address = getattr(torch, TYPES[kind]), address

    def data_ptr(self) -> int:
        return self.address

    def ptr_range(self) -> int:
        return 0


def build_launcher(compiled: Any) -> None:
    """Builds the C function that launches kernels of a signature: Triton before 3.7 has a C compiler make it."""
    driver: Any = import_module("triton.backends.nvidia.driver")
    if hasattr(driver, "make_launcher"):
        with suppress(AssertionError):  # libcuda is not on this machine
            driver.CudaLauncher(compiled.src, compiled.metadata)


def entry_of(kernel: Any, specialisation: str, capability: int) -> dict[str, Any]:
    """Returns a kernel of the list, from what Triton tells of a compiled one as its `specialization_data`."""
    data = json.loads(specialisation)
    names = list(data["signature"])
    constants = {names[key[0]]: value for key, value in zip(data["constant_keys"], data["constant_vals"], strict=True)}
    even = {
        names[key[0]] for key, value in zip(data["attrs_keys"], data["attrs_vals"], strict=True) if value == DIVISIBLE
    }
    arguments = {
        name: constants[name] if name in constants else kind_of(kind, name in even)
        for name, kind in data["signature"].items()
        if not name.isupper()
    }
    options = {name: data["options"].get(name) for name in OPTIONS}
    return {
        "kernel": f"{kernel.module}:{kernel.name}",
        "capability": capability,
        "arguments": arguments,
        "constants": {name: value for name, value in constants.items() if name.isupper()},
        "options": {name: value for name, value in options.items() if value},
    }


def kind_of(kind: str, is_even: bool) -> str | int | float:
    """Returns what stands for an argument in the list: a pointer's type, or a number with the same specialisation."""
    if kind.startswith("*"):
        return kind if is_even else f"{kind} unaligned"
    if kind not in ("i32", "fp32"):
        raise ValueError(f"an argument of type {kind}")
    return 0.5 if kind == "fp32" else 16 if is_even else 3


def argument(kind: str | float | None) -> Any:
    """Returns an argument of a kernel from what stands for it in the list."""
    if not isinstance(kind, str):
        return kind
    name, _, unaligned = kind.removeprefix("*").partition(" ")
    return Pointer(name, 8 if unaligned else 0)


def constant(value: Any) -> Any:
    """Returns a constant of a kernel from its form in the list."""
    import triton.language as tl

    if isinstance(value, list):
        return tuple(map(constant, value))
    if isinstance(value, dict):
        return named(value["jit_function"])
    return tl.dtype(value) if isinstance(value, str) and tl.dtype.is_dtype(value) else value


def named(kernel: str) -> Any:
    """Returns the kernel or function `module:name`."""
    module, _, name = kernel.partition(":")
    return getattr(import_module(module), name)


def main(arguments: Sequence[str]) -> int:
    """Compiles the kernels of these models' published cases, all if none is named; returns the exit code."""
    folders = {file.parents[1].name: file.parent for file in sorted(MODELS.glob(f"*/fast/{LIST}"))}
    parser = argparse.ArgumentParser(prog="python -m src.gpu.precompile", description=main.__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(folders))
    parser.add_argument("--capability", type=int, help="of a GPU that is not here: 90 for H100 and H200")
    options = parser.parse_args(arguments)
    here = capability()
    chip = options.capability or here
    if not chip:
        parser.error("there is no NVIDIA GPU here; give --capability=90 to compile for an H100 or H200")
    if unknown := set(options.models) - set(folders):
        parser.error(f"{unknown.pop()} has no list of kernels; expected {', '.join(folders)}")
    from triton import knobs

    could = True
    for model in options.models or folders:
        for precision in PRECISIONS:
            entries, begin_s = listed(folders[model], chip, precision), time.monotonic()
            if not entries and precision == "bf16":  # few models have a list of it
                continue
            import_kernels(entries)
            done, others = list(grouped(folders[model], chip, precision)), [build_driver] if here else []
            ended = not entries or compile_all(entries, done, cpu_count(), others)
            could = could and ended
            words = f"{len(entries)} kernels" if ended else "FAILED; a run compiles what it needs"
            print(f"{model} {precision}: {words}, {time.monotonic() - begin_s:.1f} s", flush=True)
    print(f"they are in {knobs.cache.dir}; python -m src.gpu.kernel_archive pack FILE.zip takes them to other machines")
    return 0 if could else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
