"""One export: a checkpoint to a folder for another library, read again and compared before the folder is there."""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from uuid import uuid4

import torch
from omegaconf import DictConfig

from src.config.schema import ExportConfig, typed
from src.config.settings import given_overrides
from src.config.values import checked
from src.datamodules.prepared import atomic_folder
from src.errors import UserError
from src.export.card import write_card
from src.export.graphs import FILES, READERS, WRITERS, graph_difference, silenced
from src.export.record import is_ours, with_version, write_record
from src.pretrained.hub import check_hub, push
from src.pretrained.reading import NAME, write_rest
from src.pretrained.weights import weights_difference, write_weights
from src.system.files import check_writable
from src.trained import Trained, open_trained
from src.training.checkpoints import first_line
from src.training.export import Export

# The greatest difference that is allowed, relative to the greatest value; of energies to their deviation.
TOLERANCE = {"safetensors": 0.0, "torch_export": 1e-6, "aoti": 1e-4, "onnx": 1e-4, "hf": 1e-4}
PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime")}
EXTRA = "export"
MODEL = "model."
GIB = 2**30
COLOURS = re.compile("\x1b\\[[0-9;]*m")


def export(config: DictConfig) -> None:
    """Exports as configured; prints the folder, and how far it is from the checkpoint's network.

    Raises UserError for what cannot be exported or is not the same when it is read again; then nothing is written.
    """
    settings: ExportConfig = typed(checked(config, ExportConfig))
    path, kind = Path(settings.ckpt_path), settings.to
    target = Path(settings.output) if settings.output else path.with_name(f"{path.stem}_{kind}")
    check_target(target, settings.overwrite)
    if settings.push is not None:
        check_hub(settings.push)
    trained = opened(path, *of_the_model(given_overrides()))
    exported = trained.task.exported()
    check_possible(kind, exported, trained.config.model["name"])
    check_writable(target.parent)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), replacing(target) as folder:
        torch.manual_seed(0)
        reader, apart = write(kind, trained, exported, folder, int(settings.shard_gib * GIB))
        if not apart <= TOLERANCE[kind]:
            raise UserError(
                f"to={kind}: read again by {reader} it differs by {apart:.2g} from the checkpoint's network, more than "
                f"{TOLERANCE[kind]:g}, so nothing was written; give to={' or '.join(possible(exported, kind))}"
            )
        content = write_record(folder, path, trained, exported, kind, {"reader": reader, "difference": apart})
        if is_ours(kind, exported):
            write_rest(folder, trained.task.state_dict())
        write_card(folder, path, content, exported, settings.push or str(target))
    size = sum(file.stat().st_size for file in target.iterdir())
    print(f"{target}: {', '.join(sorted(file.name for file in target.iterdir()))} ({size / 2**20:.1f} MiB)")
    print(f"read again by {reader}: greatest difference {apart:.2g} (allowed: {TOLERANCE[kind]:g})")
    if settings.push is not None:
        print(f"pushed: {push(target, settings.push)}")


def of_the_model(overrides: Sequence[str]) -> list[str]:
    """Returns those for the model's own keys, which a checkpoint leaves out where they are secrets."""
    return [text.lstrip("+") for text in overrides if text.lstrip("+").startswith(MODEL)]


def opened(path: Path, *overrides: str) -> Trained:
    """Returns the checkpoint's task with its plain modules in float32. Raises UserError, with the version that wrote it
    where that is another one.
    """
    try:
        trained = open_trained(path, "precision=fp32", "execution.kernels=off", *overrides)
    except UserError as error:
        raise UserError(with_version(str(error), path)) from error
    trained.task.requires_grad_(False)
    return trained


def check_target(target: Path, overwrite: bool) -> None:
    """Raises UserError where the folder exists, unless it is an earlier export that is to be overwritten."""
    if not target.exists() and not target.is_symlink():
        return
    if not overwrite:
        raise UserError(f"{target} exists already; give output=FOLDER, or overwrite=true")
    if target.is_symlink() or not (target / NAME).is_file():
        raise UserError(f"{target} is no earlier export (it has no {NAME}), so it stays; give another output=FOLDER")


def possible(exported: Export, but: str = "") -> Sequence[str]:
    """Returns the formats that a task has, without `but`."""
    graphs = [kind for kind in WRITERS if kind not in exported.refused] if exported.graph is not None else []
    formats = ["safetensors", *graphs, *(["hf"] if exported.hub is not None else [])]
    return [kind for kind in formats if kind != but]


def check_possible(kind: str, exported: Export, model: str) -> None:
    """Raises UserError for a format that the model has not, or that needs a package that is not installed."""
    if kind not in possible(exported):
        reason = exported.refused.get(kind, "the model does not say how (Task.exported)")
        raise UserError(f"to={kind}: {model} has no such export: {reason}; give to={' or '.join(possible(exported))}")
    packages = PACKAGES.get(kind, ())
    if kind == "hf" and exported.hub is not None:
        packages = (exported.hub.needs,)
    for package in packages:
        try:
            import_module(package)
        except ImportError as error:
            raise UserError(
                f"to={kind} needs {error.name or package}, which is not installed: pip install 'reprise[{EXTRA}]'"
            ) from None


def write(kind: str, trained: Trained, exported: Export, folder: Path, shard_bytes: int) -> tuple[str, float]:
    """Writes the format's files; returns who read them again, and the greatest difference."""
    if kind == "safetensors":
        weights = trained.task.network.state_dict()
        write_weights(weights, folder, shard_bytes)
        return "safetensors", weights_difference(folder, weights)
    if kind == "hf":
        assert exported.hub is not None
        with silenced():
            exported.hub.write(folder)
            return exported.hub.needs, exported.hub.difference(folder)
    graph = exported.graph
    assert graph is not None
    file = folder / FILES[kind]
    try:
        with silenced():
            WRITERS[kind](graph, file)
    except Exception as error:  # torch raises nearly anything for an operation that it has no rule for
        raise UserError(
            f"to={kind}: torch {torch.__version__} cannot export {type(trained.task.network).__name__} "
            f"({reason_of(error)}); give to={' or '.join(possible(exported, kind))}"
        ) from error
    reader, read = READERS[kind]
    with silenced():
        apart = graph_difference(read(file, graph), graph)
    if graph.beside:
        write_weights(graph.beside, folder, shard_bytes)
        apart = max(apart, weights_difference(folder, graph.beside))
    return reader, apart


def reason_of(error: BaseException) -> str:
    """Returns the first line of what caused the error first, without colours."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {COLOURS.sub('', first_line(error))}"


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yields a temporary folder that takes the place of `target` at the end, and is removed on any failure."""
    old = target.with_name(f".{target.name}.{uuid4().hex}.tmp")
    with atomic_folder(target) as part:
        yield part
        if target.exists():
            target.rename(old)
    shutil.rmtree(old, ignore_errors=True)
