"""Loading of Hugging Face's weight files, from the hub or a folder, with checks."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from src.datamodules.download import from_hub
from src.errors import UserError
from src.models.distilbert.labels import labels_in
from src.models.distilbert.network import DistilBert, Sizes
from src.system.reading import read_json, read_weights
from src.training.checkpoints import shown

CONFIG = "config.json"
FILES = ("model.safetensors", "pytorch_model.bin")  # the first one found
ENCODER, HEAD = "distilbert.", ("pre_classifier.", "classifier.")
MOST_LAYERS = 1000
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
    config = read_json(path, "give the config.json of a model")
    actual = config.get("model_type") if isinstance(config, dict) else None
    if actual != model_type:
        raise UserError(
            f"{path}: model_type is {actual}, not {model_type}; a BERT encoder becomes a DistilBERT with "
            f"`python -m src.models.distilbert.convert FOLDER --model {source}`"
            if actual == "bert"
            else f"{path}: model_type is {actual}, not {model_type}; give another model"
        )
    activation = config.get("activation", config.get("hidden_act", "gelu"))
    if activation != "gelu":
        raise UserError(f"{path}: activation is {activation}, but the network supports only gelu; give another model")
    return path, config


def read_sizes(source: str) -> Sizes:
    """Reads the sizes from a DistilBERT's config.json. Raises UserError for a missing key."""
    path, config = read_config(source, "distilbert")
    sizes = sizes_in(config, path, source, {f.name: f.name for f in fields(Sizes) if f.name != "num_labels"})
    return replace(sizes, num_labels=len(labels_in(config, path)))


def read_labels(source: str) -> list[str]:
    """Returns the names of the labels of trained weights. Raises UserError for a head that does not choose one."""
    path, config = read_config(source, "distilbert")
    problem = config.get("problem_type")
    if problem not in (None, "single_label_classification"):
        raise UserError(
            f"{path}: problem_type is {problem!r:.80}, but a sentence gets one label of several here: give other "
            "weights, or train a new head with model.task.new_head=true"
        )
    return labels_in(config, path)


def sizes_in(config: Mapping[str, Any], path: Path, source: str, names: Mapping[str, str]) -> Sizes:
    """Returns the sizes in a config; `names` has our name of each, and the config's.

    Raises UserError for one that is no number, and for a network with more parameters than the file of its weights has
    bytes: building it would take memory and time without bounds.
    """
    advice = f"give the {CONFIG} of the weights"
    for name in names.values():
        if type(config.get(name)) is not int:
            raise UserError(f"{path}: {name} is {config.get(name)!r}, not a number; {advice}")
    sizes = Sizes(**{ours: config[theirs] for ours, theirs in names.items()})
    weights = find(source, *FILES)
    vectors = sizes.vocab_size + sizes.max_position_embeddings + sizes.n_layers * (4 * sizes.dim + 2 * sizes.hidden_dim)
    if sizes.dim * vectors > weights.stat().st_size or sizes.n_layers > MOST_LAYERS:
        raise UserError(
            f"{path}: {names['n_layers']} {sizes.n_layers} and width {sizes.dim} are {sizes.dim * vectors:,} "
            f"parameters, which {weights} cannot hold; {advice}"
        )
    return sizes


def read_tensors(source: str) -> tuple[Path, dict[str, Tensor]]:
    """Returns path and tensors (by name, on the CPU) of a model's file. Raises UserError for a damaged file."""
    path = find(source, *FILES)
    return path, read_weights(path, "download it again")


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
        shapes = [weights[name].shape if name in weights else None for weights in (theirs, ours)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"{path}: weights of another network: {name} is {shown(shapes[0])} there and {shown(shapes[1])} here; "
                f"give the {CONFIG} that belongs to them, or other weights"
            )
