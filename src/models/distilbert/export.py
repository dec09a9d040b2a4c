"""DistilBERT for export.py: token ids to logits, and a folder for transformers' Auto classes."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from src.batches.tokens import PaddedTokens
from src.datamodules.text.texts import LABEL_NAMES
from src.datamodules.text.tokenizer import CONFIG as TOKENIZER_CONFIG
from src.datamodules.text.vocabulary import FILE, Vocabulary
from src.errors import UserError
from src.models.distilbert.convert import config_of
from src.models.distilbert.network import DistilBert
from src.models.distilbert.weights import CONFIG, FILES
from src.training.export import Export, HubFolder, Inputs, Outputs, TensorGraph, difference

LENGTH = 24  # tokens of an example's sentences, or as many as the network takes


class Logits(nn.Module):
    """Logits of sentences that are padded at their ends."""

    def __init__(self, network: DistilBert) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.network(PaddedTokens(input_ids, attention_mask.sum(1).int(), input_ids[:, 0]))


def label_names(task: Any) -> list[str]:
    """Returns the names of the outputs: those of the data, else SST-2's or their numbers."""
    count = task.network.sizes.num_labels
    names: list[str] = task.label_names or [*LABEL_NAMES]
    return names if len(names) == count else [str(number) for number in range(count)]


def hugging_face_config(task: Any) -> dict[str, Any]:
    """Returns the content of config.json."""
    network, names = task.network, label_names(task)
    return config_of(network.sizes) | {
        "architectures": ["DistilBertForSequenceClassification"],
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "single_label_classification",
        "dropout": network.dropout.hidden,
        "attention_dropout": network.dropout.attention,
        "seq_classif_dropout": network.dropout.head,
        "pad_token_id": 0,
        "dtype": "float32",
    }


def exported(task: Any) -> Export:
    """Returns the network with its vocabulary, as far as the checkpoint has one."""
    network = task.network
    sizes = network.sizes

    def example(batch: int) -> tuple[Inputs, Outputs]:
        length = min(LENGTH, sizes.max_position_embeddings) - (batch % 2)
        lengths = torch.randint(3, length + 1, (batch,))
        lengths[0] = length
        mask = (torch.arange(length) < lengths[:, None]).long()
        ids = torch.randint(1, sizes.vocab_size, (batch, length)) * mask
        tokens = PaddedTokens(ids.int(), lengths.int(), torch.zeros(batch, dtype=torch.int64))
        return {"input_ids": ids, "attention_mask": mask}, (network(tokens),)

    def write(folder: Path) -> None:
        weights = {name: value.contiguous() for name, value in network.state_dict().items()}
        save_file(weights, folder / FILES[0], metadata={"format": "pt"})
        write_json(folder / CONFIG, hugging_face_config(task))
        if not task.pieces:
            print("note: the checkpoint has no vocabulary, so the folder has no tokenizer")
            return
        (folder / FILE).write_text("\n".join((*task.pieces, "")), encoding="utf-8")
        write_json(folder / TOKENIZER_CONFIG, tokenizer_config(task))

    @torch.no_grad()
    def from_transformers(folder: Path) -> float:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        if task.pieces:
            check_tokenizer(AutoTokenizer.from_pretrained(folder), Vocabulary("x", task.pieces, task.tokenizer))
        inputs, expected = example(8)
        return difference((model(**inputs).logits,), expected)

    reason = (
        "model.task.network.pooling=mean, but DistilBertForSequenceClassification reads the first token"
        if network.pooling != "first"
        else None
    )
    both = {0: "sentences", 1: "tokens"}
    command = "transformers.AutoModelForSequenceClassification.from_pretrained('FOLDER')"
    hub = HubFolder("transformers", write, from_transformers, command, has_our_names=True)
    return Export(
        preprocessing={
            "labels": label_names(task),
            "max_length": min(task.max_length, sizes.max_position_embeddings),
            "padding": "at the end, with id 0",
            "tokenizer": vars(task.tokenizer),
            "vocabulary": list(task.pieces) or None,
        },
        graph=TensorGraph(
            Logits(network),
            example,
            {"input_ids": both, "attention_mask": both},
            ("logits",),
            longest={"tokens": sizes.max_position_embeddings},
        ),
        hub=hub if reason is None else None,
        refused={} if reason is None else {"hf": reason},
        pipeline="text-classification",
    )


def tokenizer_config(task: Any) -> dict[str, Any]:
    """Returns the content of tokenizer_config.json."""
    longest = min(task.max_length, task.network.sizes.max_position_embeddings)
    return {"tokenizer_class": "DistilBertTokenizer", "model_max_length": longest, **vars(task.tokenizer)}


def check_tokenizer(theirs: Any, ours: Vocabulary) -> None:
    """Raises UserError where the folder's tokenizer gives other ids than ours, for words of any case and script."""
    words = [piece for piece in ours.pieces if not piece.startswith(("[", "##"))][:2000]
    text = " ".join([*words, *(word.upper() for word in words[:100]), "Éa ß 日本 ﬁ don't", "qxzj"])
    for part in (text, "Naïve café, 3.5%!", "[SEP] [unused1]"):
        expected = ours.tokenizer.encode(part).ids
        actual = theirs(part, truncation=False, verbose=False)["input_ids"]
        if actual != expected:
            row = next((i for i, pair in enumerate(zip(actual, expected, strict=False)) if pair[0] != pair[1]), -1)
            raise UserError(
                f"to=hf: transformers' tokenizer gives other ids than ours from token {row} of {part!r:.40} on; use "
                "to=safetensors, onnx or torch_export with the vocabulary in reprise.json"
            )


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
