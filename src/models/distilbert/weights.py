"""Weights in Hugging Face's files: from the hub or a folder into the network, checked on the way."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from src.errors import UserError
from src.models.distilbert.network import DistilBert, Sizes
from src.training.checkpoints import shown

CONFIG = "config.json"
FILES = ("model.safetensors", "pytorch_model.bin")  # the first one that is there
ENCODER, HEAD = "distilbert.", ("pre_classifier.", "classifier.")
BARE = ("embeddings.", "transformer.")  # how names begin in the file of an encoder alone


def find(source: str, *names: str) -> Path:
    """The first of the files `names` that is there: in a folder, else in a repository of the hub (kept in its cache).

    Raises UserError where there is none, and for a hub that cannot be reached.
    """
    if Path(source).is_dir():
        for name in names:
            if (Path(source) / name).is_file():
                return Path(source) / name
        raise UserError(f"{source} holds no {' or '.join(names)}; give a folder with {CONFIG} and {FILES[0]}")
    reason = ""
    for is_cached in (True, False):  # what was fetched before is taken without asking the hub
        for name in names:
            try:
                return Path(hf_hub_download(source, name, local_files_only=is_cached))
            except (OSError, ValueError) as error:
                reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
    raise UserError(
        f"{source} is no folder here, and the hub gives no {' or '.join(names)} of that name ({reason}); give the path "
        f"of a local folder with {CONFIG} and {FILES[0]}"
    )


def read_config(source: str, model_type: str) -> tuple[Path, dict[str, Any]]:
    """The config.json of a model of that type with exact GELU, and where it is. Raises UserError for another one."""
    path = find(source, CONFIG)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}); give the config.json of a model") from None
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
        raise UserError(f"{path}: its activation is {activation}; the network has gelu alone, give another model")
    return path, config


def read_sizes(source: str) -> Sizes:
    """The sizes that a DistilBERT's config.json tells. Raises UserError, naming the key, for one that is missing."""
    path, config = read_config(source, "distilbert")
    names = [field.name for field in fields(Sizes) if field.name != "num_labels"]
    for name in names:
        if not isinstance(config.get(name), int):
            raise UserError(f"{path}: {name} is {config.get(name)}, not a number; give the config.json of the weights")
    return Sizes(**{name: config[name] for name in names})


def read_tensors(source: str) -> tuple[Path, dict[str, Tensor]]:
    """The tensors of a model's file by name, on the CPU, and where it is. Raises UserError for a damaged file."""
    path = find(source, *FILES)
    try:
        if path.suffix == ".safetensors":
            return path, load_file(path)
        return path, torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:80]
        raise UserError(f"{path} is truncated or no file of weights ({reason}); get it again") from None


def load(network: DistilBert, source: str) -> bool:
    """Puts the weights of a folder or the hub into the network; returns whether the head was among them.

    An encoder alone leaves the head as it is. Raises UserError, naming the tensor, where they are of another network.
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
