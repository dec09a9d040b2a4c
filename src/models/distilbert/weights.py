"""Loading of Hugging Face's weight files, from the hub or a folder, with checks."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from src.datamodules.download import from_hub
from src.errors import UserError
from src.models.distilbert.network import DistilBert, Sizes
from src.training.checkpoints import shown

CONFIG = "config.json"
FILES = ("model.safetensors", "pytorch_model.bin")  # the first one found
ENCODER, HEAD = "distilbert.", ("pre_classifier.", "classifier.")
BARE = ("embeddings.", "transformer.")  # prefixes in the file of a bare encoder


def find(source: str, *names: str) -> Path:
    """Returns the first of the files `names` found in a folder, else in a repository of the hub (and its cache).

    Raises UserError if there is none, or if the hub cannot be reached.
    """
    if Path(source).is_dir():
        for name in names:
            if (Path(source) / name).is_file():
                return Path(source) / name
        raise UserError(f"{source} has no {' or '.join(names)}; give a folder with {CONFIG} and {FILES[0]}")
    try:
        return from_hub(source, *names)
    except FileNotFoundError as error:
        raise UserError(
            f"{source} is not a local folder, and the hub gives no {' or '.join(names)} of that name ({error}); give "
            f"model.task.weights=FOLDER with {CONFIG} and {FILES[0]}, or model.task.weights=random"
        ) from None


def read_config(source: str, model_type: str) -> tuple[Path, dict[str, Any]]:
    """Returns path and content of a config.json. Raises UserError for another model type or activation."""
    path = find(source, CONFIG)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); give the config.json of a model") from None
    found = config.get("model_type") if isinstance(config, dict) else None
    if found != model_type:
        raise UserError(
            f"{path}: model_type is {found}, not {model_type}; a BERT encoder becomes a DistilBERT with "
            f"`python -m src.models.distilbert.convert FOLDER --model {source}`"
            if found == "bert"
            else f"{path}: model_type is {found}, not {model_type}; give another model"
        )
    activation = config.get("activation", config.get("hidden_act", "gelu"))
    if activation != "gelu":
        raise UserError(f"{path}: activation is {activation}, but the network supports only gelu; give another model")
    return path, config


def read_sizes(source: str) -> Sizes:
    """Reads the sizes from a DistilBERT's config.json. Raises UserError for a missing key."""
    path, config = read_config(source, "distilbert")
    names = [field.name for field in fields(Sizes) if field.name != "num_labels"]
    for name in names:
        if not isinstance(config.get(name), int):
            raise UserError(f"{path}: {name} is {config.get(name)}, not a number; give the config.json of the weights")
    return Sizes(**{name: config[name] for name in names})


def read_tensors(source: str) -> tuple[Path, dict[str, Tensor]]:
    """Returns path and tensors (by name, on the CPU) of a model's file. Raises UserError for a damaged file."""
    path = find(source, *FILES)
    try:
        if path.suffix == ".safetensors":
            return path, load_file(path)
        return path, torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:80]
        raise UserError(f"{path} is truncated or not a weight file ({reason}); download it again") from None


def load(network: DistilBert, source: str) -> bool:
    """Loads the weights of a folder or the hub into the network; returns whether they include the head.

    Weights of a bare encoder leave the head unchanged. Raises UserError for weights of another network.
    """
    path, tensors = read_tensors(source)
    theirs = {f"{ENCODER}{name}" if name.startswith(BARE) else name: value for name, value in tensors.items()}
    theirs = {name: value for name, value in theirs.items() if name.startswith((ENCODER, *HEAD))}
    has_head = any(name.startswith(HEAD) for name in theirs)
    ours = {name: value for name, value in network.state_dict().items() if has_head or name.startswith(ENCODER)}
    check_same(theirs, ours, path)
    network.load_state_dict(theirs, strict=has_head)
    return has_head


def check_same(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], path: Path) -> None:
    """Raises UserError naming the first tensor whose name or shape differs."""
    for name in sorted(theirs.keys() | ours.keys()):
        shapes = [found[name].shape if name in found else None for found in (theirs, ours)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"{path}: weights of another network: {name} is {shown(shapes[0])} there and {shown(shapes[1])} here; "
                f"give the {CONFIG} that belongs to them, or other weights"
            )
