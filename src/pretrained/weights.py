"""Weights as safetensors, in one file or in shards with an index, by Hugging Face's names."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from src.errors import UserError
from src.system.reading import read_json

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


def write_weights(weights: Mapping[str, Tensor], folder: Path, shard_bytes: int) -> None:
    """Writes the weights in shards of at most `shard_bytes`; a larger tensor has a shard of its own.

    A single shard is FILE, several have an INDEX.
    """
    shards = shards_of(weights, shard_bytes)
    names = [FILE]
    if len(shards) > 1:
        names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in weights.values())},
            "weight_map": {key: name for name, keys in zip(names, shards, strict=True) for key in keys},
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    for name, keys in zip(names, shards, strict=True):
        # A copy: tables of one network may share memory, which safetensors refuses.
        tensors = {key: weights[key].detach().cpu().clone(memory_format=torch.contiguous_format) for key in keys}
        save_file(tensors, folder / name, metadata={"format": "pt"})


def shards_of(weights: Mapping[str, Tensor], shard_bytes: int) -> list[list[str]]:
    """Returns the names of each shard, in order."""
    shards: list[list[str]] = [[]]
    size = 0
    for key, tensor in weights.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(key)
        size += tensor.nbytes
    return shards


def places_in(folder: Path) -> dict[str, str]:
    """Returns the file of each tensor in a folder of weights. Raises UserError for an index that does not say it."""
    index = folder / INDEX
    if index.is_file():
        content = read_json(index)
        places = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise UserError(f"{index}: 'weight_map' names no file of each tensor; write the folder anew")
        return places
    with safe_open(folder / FILE, "pt") as file:
        return dict.fromkeys(file.keys(), FILE)


def weights_difference(folder: Path, weights: Mapping[str, Tensor]) -> float:
    """Returns 0 where the files hold these weights bit for bit, else infinity."""
    places = places_in(folder)
    same = places.keys() == weights.keys()
    for name in dict.fromkeys(places.values()):
        with safe_open(folder / name, "pt") as file:
            keys = {key for key, place in places.items() if place == name}
            same = same and keys == set(file.keys())
            same = same and all(bitwise_equal(file.get_tensor(key), weights[key]) for key in keys)
    return 0.0 if same else float("inf")


def bitwise_equal(tensor: Tensor, other: Tensor) -> bool:
    """Returns whether type, shape and values are the same; NaN equals NaN."""
    other = other.detach().cpu()
    return tensor.dtype == other.dtype and torch.equal(tensor.nan_to_num(), other.nan_to_num())
