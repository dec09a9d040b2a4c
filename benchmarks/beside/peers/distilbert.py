"""Hugging Face's DistilBERT for classification."""

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.beside.assignment import Assignment, Prepared
from benchmarks.beside.peers.common import Once, batches, fused, in_graph, over, set_precision, training_step
from src.batches.tokens import PackedTokens, PaddedTokens

TINY = {"vocab_size": 1100, "dim": 24, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
ATTENTION = {"sdpa": "sdpa", "eager attention": "eager", "flash attention 2": "flash_attention_2", "packed": "packed"}
Inputs = tuple[dict[str, Any], Tensor]


def hugging_face_training(assignment: Assignment, device: torch.device) -> Prepared:
    """Trains DistilBertForSequenceClassification with random weights and AdamW; variants name attention and how."""
    from transformers.models.auto.modeling_auto import AutoModelForSequenceClassification
    from transformers.models.distilbert.configuration_distilbert import DistilBertConfig

    set_precision(assignment.case.precision)
    attention = next(name for words, name in ATTENTION.items() if assignment.variant.startswith(words))
    if attention == "packed":
        register_packed()
    sizes: dict[str, Any] = {"num_labels": 2, **(TINY if assignment.tiny else {})}
    config = DistilBertConfig(**sizes)
    network = AutoModelForSequenceClassification.from_config(config, attn_implementation=attention).to(device).train()
    options = fused(device, capturable=True)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-5, weight_decay=0.0, **options)
    _, pool = batches(assignment, device)
    logits: Any = partial(packed_logits, network) if attention == "packed" else lambda **batch: network(**batch).logits
    if "compiled" in assignment.variant and device.type == "cuda":
        logits = torch.compile(logits)

    def loss(batch: Inputs) -> Tensor:
        return F.cross_entropy(logits(**batch[0]).float(), batch[1])

    step = training_step(loss, optimizer, assignment.case.precision, device)
    inputs = [packed(batch) if attention == "packed" else padded(batch, attention) for batch in pool]
    eager = over(step, inputs[:1] if "graph" in assignment.variant else inputs)
    return Prepared(
        Once(lambda: in_graph(eager, device)) if "graph" in assignment.variant else eager,
        "casts, loss scaling, dropout, optimizer; token ids lie on the GPU",
        ["transformers", "flash-attn", "triton"],
        [PACKED] if attention == "packed" else [],
    )


PACKED = ("Transformers packs no sentences for classification: we register torch's flash attention (varlen) as its "
          "attention and classify the first token of every sentence with its layers")  # fmt: skip


def padded(batch: PaddedTokens | PackedTokens, attention: str) -> Inputs:
    """Returns the network's arguments and the labels.

    Sentences of a packed batch are padded to the longest one. A batch without padding has no mask, which is the
    fastest. With flash attention a mask makes transformers take the padding out before attention (varlen).
    """
    if isinstance(batch, PackedTokens):
        lengths = batch.starts.diff()
        length = int(lengths.max())
        ids = batch.ids.new_zeros(len(lengths), length)
        mask = torch.arange(length, device=ids.device) < lengths[:, None]
        ids[mask] = batch.ids[: int(batch.starts[-1])]
    else:
        ids, mask = batch.ids, torch.arange(batch.ids.shape[1], device=batch.ids.device) < batch.lengths[:, None]
    arguments: dict[str, Any] = {"input_ids": ids.long()}
    if not bool(mask.all()) or attention == "flash_attention_2":
        arguments["attention_mask"] = mask.long()
    return arguments, batch.labels


def packed(batch: PackedTokens) -> Inputs:
    """Returns the arguments of `packed_logits` and the labels; the padding at the end is left out."""
    end = int(batch.starts[-1])
    arguments = {"ids": batch.ids[None, :end].long(), "positions": batch.positions[None, :end].long()}
    longest = int(batch.starts.diff().max())
    return arguments | {"starts": batch.starts, "first": batch.starts[:-1].long(), "longest": longest}, batch.labels


def packed_logits(network: Any, ids: Tensor, positions: Tensor, starts: Tensor, first: Tensor, longest: int) -> Tensor:
    hidden = network.distilbert(input_ids=ids, position_ids=positions, starts=starts, longest=longest)[0][0, first]
    return network.classifier(network.dropout(F.relu(network.pre_classifier(hidden))))


def register_packed() -> None:
    """Makes `packed` an attention of transformers, without a mask."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register("packed", attend_packed)
    AttentionMaskInterface.register("packed", lambda *_, **__: None)


def attend_packed(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, **options: Any
) -> tuple[Tensor, None]:
    """Computes attention within the sentences `starts`: [1, heads, tokens, size] -> [1, tokens, heads, size]."""
    starts, longest, drop = options["starts"], options["longest"], options.get("dropout", 0.0)
    if query.device.type == "cuda":
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        flash = torch.ops.aten._flash_attention_forward
        out = flash(q, k, v, starts, starts, longest, longest, drop, False, False)[0]
        return out[None], None
    cuts = starts.tolist()
    parts = [
        F.scaled_dot_product_attention(*(x[:, :, begin:end] for x in (query, key, value)), dropout_p=drop)
        for begin, end in pairwise(cuts)
    ]
    return torch.cat(parts, 2).transpose(1, 2), None
