"""cuBLASLt's algorithms for a product in half precision, of which torch takes the first: the library that torch loads.

Names and numbers are those of cublasLt.h (CUDA 12 and 13): https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api.
"""

import ctypes
from contextlib import suppress
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}  # cudaDataType_t
COMPUTE_32F = 68
DEFAULT, BIAS, RELU_BIAS = 1, 4, 6  # cublasLtEpilogue_t
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER, BIAS_TYPE = 3, 4, 7, 8, 26  # cublasLtMatmulDescAttributes_t
WORKSPACE, ALIGNMENTS = 1, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t
ALIGNED = 16  # bytes, of all matrices
# Most bytes. Before an algorithm with a workspace there is a launch that sets 4 bytes of it to 0: 5 us with its gap.
WORKSPACES = 2**25, 0
MOST_ALGORITHMS = 16


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


class Matrix(NamedTuple):
    """A matrix of a product: of columns that are contiguous if `by_columns`, else of such rows; `step` apart."""

    by_columns: bool
    step: int
    dtype: torch.dtype


class Kind(NamedTuple):
    """out[rows, columns] = a[rows, depth] @ b[depth, columns], added to out if `adds`; of one device."""

    device: int
    rows: int
    columns: int
    depth: int
    a: Matrix
    b: Matrix
    out: Matrix  # by rows
    epilogue: int
    adds: bool


@dataclass(frozen=True)
class Algorithm:
    """One way to compute a product of a kind. `index` is its place among those of this version of the library."""

    kind: Kind
    index: int
    description: c_void_p
    layouts: tuple[c_void_p, c_void_p, c_void_p]
    heuristic: Heuristic

    def run(self, a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None) -> None:
        if bias is not None:
            set_attribute("cublasLtMatmulDescSetAttribute", self.description, BIAS_POINTER, pointer(bias))
        size = self.heuristic.workspace
        workspace = torch.empty(size, dtype=torch.uint8, device=out.device) if size else None
        of_b, of_a, of_out = self.layouts
        call(
            "cublasLtMatmul", handle(self.kind.device), self.description,
            byref(c_float(1)), pointer(b), of_b, pointer(a), of_a,
            byref(c_float(self.kind.adds)), pointer(out), of_out, pointer(out), of_out,
            byref(self.heuristic.algorithm), pointer(workspace), c_size_t(size),
            c_void_p(torch.cuda.current_stream(out.device).cuda_stream),
        )  # fmt: skip


@cache
def library() -> Any:
    """Returns the library; None where torch has none."""
    try:
        return ctypes.CDLL(f"libcublasLt.so.{(torch.version.cuda or '').split('.')[0]}")
    except OSError:
        return None


@cache
def version() -> int:
    get = library().cublasLtGetVersion
    get.restype = c_size_t
    return get()


def call(name: str, *arguments: Any) -> None:
    if status := getattr(library(), name)(*arguments):
        raise RuntimeError(f"{name} returned status {status}")


def set_attribute(function: str, target: c_void_p, attribute: int, value: Any) -> None:
    call(function, target, c_int(attribute), byref(value), c_size_t(ctypes.sizeof(value)))


@cache
def handle(device: int) -> c_void_p:
    made = c_void_p()
    with torch.cuda.device(device):
        call("cublasLtCreate", byref(made))
    return made


def pointer(tensor: Tensor | None) -> c_void_p:
    return c_void_p(tensor.data_ptr() if tensor is not None else None)


def layout(matrix: Matrix, rows: int, columns: int) -> c_void_p:
    """Describes the transpose of a matrix: cuBLAS's are by columns."""
    made, shape = c_void_p(), (rows, columns) if matrix.by_columns else (columns, rows)
    call(
        "cublasLtMatrixLayoutCreate", byref(made), c_int(TYPES[matrix.dtype]), *map(c_uint64, shape),
        c_int64(matrix.step),
    )  # fmt: skip
    return made


def algorithms(kind: Kind, bias: Tensor | None) -> list[Algorithm]:
    """Returns the library's proposals for a product for each of WORKSPACES, the fastest first by its estimate."""
    description, preference = c_void_p(), c_void_p()
    call("cublasLtMatmulDescCreate", byref(description), c_int(COMPUTE_32F), c_int(TYPES[torch.float32]))
    attributes = {TRANSPOSE_A: kind.b.by_columns, TRANSPOSE_B: kind.a.by_columns, EPILOGUE: kind.epilogue}
    if kind.epilogue != DEFAULT:
        attributes[BIAS_TYPE] = TYPES[kind.a.dtype]
        set_attribute("cublasLtMatmulDescSetAttribute", description, BIAS_POINTER, pointer(bias))
    for name, value in attributes.items():
        set_attribute("cublasLtMatmulDescSetAttribute", description, name, c_int32(value))
    layouts = (
        layout(kind.b, kind.depth, kind.columns),
        layout(kind.a, kind.rows, kind.depth),
        layout(kind.out, kind.rows, kind.columns),
    )
    call("cublasLtMatmulPreferenceCreate", byref(preference))
    set_preference = "cublasLtMatmulPreferenceSetAttribute"
    for name in ALIGNMENTS:
        set_attribute(set_preference, preference, name, c_uint32(ALIGNED))
    of_b, of_a, of_out = layouts
    proposals = dict[bytes, Heuristic]()  # most of those without a workspace are among the first too
    for most in WORKSPACES:
        set_attribute(set_preference, preference, WORKSPACE, c_uint64(most))
        heuristics, count = (Heuristic * MOST_ALGORITHMS)(), c_int()
        with suppress(RuntimeError):  # there is none without a workspace
            call(
                "cublasLtMatmulAlgoGetHeuristic", handle(kind.device), description, of_b, of_a, of_out, of_out,
                preference, c_int(MOST_ALGORITHMS), heuristics, byref(count),
            )  # fmt: skip
        for one in heuristics[: count.value]:
            proposals.setdefault(bytes(one.algorithm), one)
    call("cublasLtMatmulPreferenceDestroy", preference)
    return [Algorithm(kind, i, description, layouts, one) for i, one in enumerate(proposals.values()) if not one.status]
