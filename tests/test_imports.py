"""Imports go one way: no circle of modules, nor of the packages of `src`."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter

from tests.support import ROOT

LATE = {("src.config", "src.training")}  # the classes that a checkpoint may name, looked up when one is read
PATHS = [path for folder in ("src", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py")]
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in PATHS}


def imported(name: str) -> Iterator[str]:
    """Yields the modules of this project that a module imports, also within its functions."""
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (full if full in MODULES else node.module for full in names)


def package(name: str) -> str:
    return ".".join(name.split(".")[:2])


def test_a_config_is_plain_dataclasses_where_it_is_used() -> None:
    """Hydra's DictConfig ends where a config is completed: in `src.config`, the entry points and Hydra's plug-ins."""
    enter = {
        "cli", "train", "run", "predict", "prepare", "export.run", "sweep.grid", "sweep.largest", "sweep.launcher",
        "sweep.search",
    }  # fmt: skip
    seen = {
        name for name, path in MODULES.items() if name.startswith("src.") and "DictConfig" in path.read_text("utf-8")
    }
    assert {name for name in seen if not name.startswith("src.config.")} == {f"src.{name}" for name in enter}


def test_measures_need_neither_hydra_nor_lightning() -> None:
    """A program that measures its own loop loads neither; `lightning.py` is for those that have it."""
    heavy = re.compile(r"^\s*(?:from|import) (?:hydra|omegaconf|pytorch_lightning)\b", re.MULTILINE)
    measures = [name for name in MODULES if name.startswith("src.measure")]
    assert [name for name in measures if heavy.search(MODULES[name].read_text())] == ["src.measure.lightning"]
    seen = set(measures)
    while new := {other for name in seen for other in imported(name)} - seen:
        seen |= new
    assert {package(name) for name in seen} == {"src.errors", "src.measure", "src.printable", "src.system"}


def test_imports_go_one_way() -> None:
    edges = [(name, other) for name in MODULES for other in imported(name)]
    packages = {(package(name), package(other)) for name, other in edges if other.startswith("src.")}
    assert not [edge for edge in edges if edge[0].startswith("src.") and not edge[1].startswith("src.")]
    for graph in (edges, packages - LATE):
        sorter = TopologicalSorter[str]()
        for name, other in graph:
            if name != other:
                sorter.add(name, other)
        sorter.prepare()  # raises CycleError with the circle
