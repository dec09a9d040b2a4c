"""Products in half precision by the fastest of cuBLAS's algorithms that give the bits of the one that torch takes.

torch takes the algorithm that the library expects to be fastest. Others are often faster by a tenth, and most compute
each sum in the same order. Which is fastest is measured in the last step before a CUDA graph's capture, for each shape
of a product in it, and kept in a file: `products/` in Triton's cache, by GPU and version of the library.
"""

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from src.errors import UserError
from src.gpu import cublaslt
from src.gpu.cublaslt import Algorithm, Kind, Matrix
from src.gpu.precompile import cache_folder
from src.system.files import written_atomically
from src.system.reading import read_json

LEAST = 10**9  # floating-point operations of a product that a search is worth
GAIN = 0.97  # of torch's time, that another algorithm must stay below
ROUNDS = 3
ROUND_S = 2e-3  # of one algorithm
LAUNCH_S = 5e-5  # more than the host takes to launch a product
WAIT_CYCLES = 1_000_000  # of the GPU, in which the host launches what is timed
TORCHS = -1

enabled = True  # execution.products=auto
searches = False  # whether a product that is not known yet is looked for
_chosen: dict[Kind, Algorithm | None] = {}  # None: torch's


@contextmanager
def searching(really: bool = True) -> Iterator[None]:
    """Has `mm` look for the algorithms of products that it does not know."""
    global searches
    before, searches, count = searches, really, len(_chosen)
    try:
        yield
    finally:
        searches = before
        if len(_chosen) > count:
            save()


def mm(
    a: Float[Tensor, "rows depth"],
    b: Float[Tensor, "depth columns"],
    *,
    bias: Float[Tensor, " columns"] | None = None,
    relu: bool = False,
    out: Float[Tensor, "rows columns"] | None = None,
    adds: bool = False,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "rows columns"]:
    """Returns a @ b, plus `bias`, or max(0, a @ b + bias) with `relu`; bits are those of torch's functions.

    Args:
        out: where to; a new tensor if None.
        adds: add to `out`.
        dtype: of a new tensor: that of a and b, or float32, in which sums are kept then.
    """
    kind = kind_of(a, b, bias, relu, out, adds, dtype) if enabled else None
    if kind is None:
        return by_torch(a, b, bias, relu, out, adds, dtype)
    if kind not in _chosen:
        if not searches or torch.cuda.is_current_stream_capturing():
            return by_torch(a, b, bias, relu, out, adds, dtype)
        return search(kind, a, b, bias, relu, out, dtype)
    algorithm = _chosen[kind]
    if algorithm is None:
        return by_torch(a, b, bias, relu, out, adds, dtype)
    out = a.new_empty(kind.rows, kind.columns, dtype=kind.out.dtype) if out is None else out
    algorithm.run(a, b, out, bias)
    return out


def by_torch(
    a: Tensor, b: Tensor, bias: Tensor | None, relu: bool, out: Tensor | None, adds: bool, dtype: torch.dtype | None
) -> Tensor:
    """See `mm`."""
    if adds:
        assert out is not None and bias is None
        return out.addmm_(a, b)
    if relu:
        assert out is None and bias is not None
        return torch._addmm_activation(bias, a, b)  # pyright: ignore[reportPrivateImportUsage]
    if bias is not None:
        return torch.addmm(bias, a, b, out=out)
    wide = (dtype or a.dtype) if out is None else out.dtype
    return torch.mm(a, b, out=out) if wide == a.dtype else torch.mm(a, b, out_dtype=wide, out=out)


def kind_of(
    a: Tensor, b: Tensor, bias: Tensor | None, relu: bool, out: Tensor | None, adds: bool, dtype: torch.dtype | None
) -> Kind | None:
    """Returns the kind of a product whose algorithm is worth choosing; None for others."""
    if not a.is_cuda or a.dtype not in (torch.float16, torch.bfloat16) or a.dtype != b.dtype:
        return None
    rows, depth, columns = *a.shape, b.shape[1]
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):  # autograd would not see it
        return None
    if 2 * rows * depth * columns < LEAST or torch.are_deterministic_algorithms_enabled():
        return None
    device = a.get_device()
    if torch.cuda.get_device_capability(device)[0] != 9 or cublaslt.library() is None:
        return None
    matrices = matrix_of(a), matrix_of(b)
    of_out = Matrix(False, columns, dtype or a.dtype) if out is None else matrix_of(out)
    if None in matrices or of_out is None or of_out.by_columns or (bias is not None and bias.dtype != a.dtype):
        return None
    epilogue = cublaslt.RELU_BIAS if relu else cublaslt.DEFAULT if bias is None else cublaslt.BIAS
    return Kind(device, rows, columns, depth, *matrices, of_out, epilogue, adds)  # type: ignore[arg-type]


def matrix_of(tensor: Tensor) -> Matrix | None:
    """Returns how a matrix lies in memory; None where its rows or columns are not contiguous and aligned."""
    steps, size = tensor.stride(), tensor.element_size()
    if 1 not in steps or tensor.data_ptr() % cublaslt.ALIGNED:
        return None
    by_columns = steps[1] != 1
    step = steps[by_columns]
    return Matrix(by_columns, step, tensor.dtype) if not step * size % cublaslt.ALIGNED else None


def search(
    kind: Kind, a: Tensor, b: Tensor, bias: Tensor | None, relu: bool, out: Tensor | None, dtype: torch.dtype | None
) -> Tensor:
    """Returns the product by torch; from now on the fastest algorithm that computes the same takes it."""

    def torchs(target: Tensor | None) -> Tensor:
        return by_torch(a, b, bias, relu, target, kind.adds, dtype)

    _chosen[kind] = None
    try:
        before = out.clone() if out is not None and kind.adds else None
        trial = a.new_empty(kind.rows, kind.columns, dtype=kind.out.dtype)
    except torch.OutOfMemoryError:
        return torchs(out)
    result = torchs(out)

    def is_same(algorithm: Algorithm) -> bool:
        trial.zero_() if before is None else trial.copy_(before)
        algorithm.run(a, b, trial, bias)
        return torch.equal(trial, result)

    def timed(algorithm: Algorithm) -> Callable[[], object]:
        return lambda: algorithm.run(a, b, trial, bias)

    recorded = choices_on_file().get(name_of(kind))
    with suppress(RuntimeError, AttributeError):  # of another library
        algorithms = cublaslt.algorithms(kind, bias) if recorded != TORCHS else []
        if of_file := [one for one in algorithms if one.index == recorded and is_same(one)]:
            _chosen[kind] = of_file[0]
        elif same := list(filter(is_same, algorithms)):
            torchs_time, *times = seconds([lambda: torchs(None if relu else trial), *map(timed, same)])
            fastest = min(zip(times, same, strict=True), key=lambda pair: pair[0])
            _chosen[kind] = fastest[1] if fastest[0] < GAIN * torchs_time else None
    return result


def seconds(functions: list[Callable[[], object]]) -> list[float]:
    """Returns how long each keeps the GPU busy, the median of rounds in turn.

    Long products follow one another without a rest: at full power a GPU's clock falls, and not for all by as much.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def measured(function: Callable[[], object], count: int, waits: bool) -> float:
        if waits:
            torch.cuda._sleep(WAIT_CYCLES)  # pyright: ignore[reportPrivateImportUsage]
        begin.record()
        for _ in range(count):
            function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000 / count

    about = measured(functions[0], 4, waits=True)
    count = max(2, min(40, int(ROUND_S / about)))
    rounds = [[measured(function, count, waits=about < LAUNCH_S) for function in functions] for _ in range(ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def name_of(kind: Kind) -> str:
    """Returns a kind's name in the file, without the device."""
    return "_".join(map(str, kind[1:]))


def file() -> Path:
    device = torch.cuda.get_device_name().replace(" ", "_")
    return cache_folder() / "reprise" / "products" / f"{device}_{cublaslt.version()}.json"


def choices_on_file() -> dict[str, int]:
    """Returns the indices of algorithms of earlier searches by the names of their kinds; TORCHS is torch's choice."""
    if not _on_file and file().exists():
        _on_file.update(read_choices(file()))
    return _on_file


def read_choices(path: Path) -> dict[str, int]:
    """Returns what a file holds; nothing of one that is damaged, which the next search replaces."""
    with suppress(UserError):
        choices = read_json(path)
        if isinstance(choices, dict) and all(isinstance(value, int) for value in choices.values()):
            return choices
    return {}


def save() -> None:
    """Adds what this process chose to the file."""
    _on_file.update({name_of(kind): one.index if one is not None else TORCHS for kind, one in _chosen.items()})
    with suppress(UserError), written_atomically(file()) as path:  # the folder may be read-only
        path.write_text(json.dumps(_on_file, sort_keys=True))


_on_file: dict[str, int] = {}
