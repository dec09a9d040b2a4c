"""Graphs of a network: torch.export, AOTInductor and ONNX, each read again by its own reader."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from src.training.export import Inputs, Outputs, TensorGraph, difference

Reader = Callable[[Inputs], Outputs]
SIZES = 3, 5  # samples of the batch that a graph is traced with, and of another one that it must serve
FILES = {"torch_export": "model.pt2", "aoti": "model.pt2", "onnx": "model.onnx"}


def write_torch_export(graph: TensorGraph, path: Path) -> None:
    torch.export.save(traced(graph), path)


def read_torch_export(path: Path, graph: TensorGraph) -> Reader:
    return by_position(torch.export.load(path).module())


def write_aoti(graph: TensorGraph, path: Path) -> None:
    """Compiles the graph for this machine's CPU; needs a C++ compiler."""
    torch._inductor.aoti_compile_and_package(traced(graph), package_path=str(path))


def read_aoti(path: Path, graph: TensorGraph) -> Reader:
    return by_position(torch._inductor.aoti_load_package(str(path)))


def write_onnx(graph: TensorGraph, path: Path) -> None:
    names = list(graph.free)
    options = {"input_names": names, "output_names": list(graph.outputs), "dynamo": True, "verbose": False}
    program: Any = torch.onnx.export(traced(graph), (), **options)
    program.save(path)


def read_onnx(path: Path, graph: TensorGraph) -> Reader:
    session = import_module("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(inputs: Inputs) -> Outputs:
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        return tuple(map(torch.from_numpy, session.run(list(graph.outputs), arrays)))

    return run


WRITERS = {"torch_export": write_torch_export, "aoti": write_aoti, "onnx": write_onnx}
READERS = {
    "torch_export": ("torch.export.load", read_torch_export),
    "aoti": ("torch._inductor.aoti_load_package", read_aoti),
    "onnx": ("onnxruntime", read_onnx),
}


def traced(graph: TensorGraph) -> ExportedProgram:
    """Returns the module as a graph whose named dimensions are free, where torch proves nothing else of them."""
    inputs, _ = graph.example(SIZES[0])
    free = {
        name: {at: Dim.AUTO(max=graph.longest.get(word)) for at, word in dims.items()}
        for name, dims in graph.free.items()
    }
    shapes = tuple(free[name] for name in inputs)
    return torch.export.export(graph.module, tuple(inputs.values()), dynamic_shapes=shapes)


def graph_difference(read: Reader, graph: TensorGraph) -> float:
    """Returns the greatest difference over batches of several sizes."""
    return max(difference(read(inputs), expected, graph.scale) for inputs, expected in map(graph.example, SIZES))


def by_position(function: Callable[..., Tensor | Outputs | list[Tensor]]) -> Reader:
    def run(inputs: Inputs) -> Outputs:
        outputs = function(*inputs.values())
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)

    return run


@contextmanager
def silenced() -> Iterator[None]:
    """Keeps torch's notes on its own code from the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
