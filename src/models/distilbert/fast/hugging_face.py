"""Hugging Face's DistilBERT encoder by the kernels of `embedding` and `layer`.

Padding is dropped: where some of the mask is 0, the real tokens are packed, and padding's hidden states are zeros. A
sentence classifier reads the first token's state alone, so the last layer computes that one alone. The classes keep the
plain ones' names, which Hugging Face writes into config.json.
"""

from collections.abc import Iterator
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import GELUActivation
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.distilbert import modeling_distilbert as plain

from src.batches.tokens import PackedTokens, PaddedTokens, Tokens
from src.gpu import training_graphs
from src.gpu.hooks import hooked
from src.gpu.triton_helpers import working_dtype
from src.models.distilbert.fast import attention, rows
from src.models.distilbert.fast.embedding import embed
from src.models.distilbert.fast.layer import layer
from src.models.distilbert.layout import Layout

ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")  # which all compute the same
IGNORED = ("return_dict", "num_items_in_batch")  # arguments that change nothing in the encoder
BUCKET, LENGTHS = 256, 32  # packed tokens and longest sentences are rounded up to multiples, for few shapes of graphs
GRAPHED = 16384  # most tokens of a batch that CUDA graphs are kept for: with more, kernels are longer than launches
EMBEDDINGS = {"word_embeddings": nn.Embedding, "position_embeddings": nn.Embedding, "LayerNorm": nn.LayerNorm,
              "dropout": nn.Dropout}  # fmt: skip
BLOCK = {**{f"attention.{name}_lin": nn.Linear for name in ("q", "k", "v", "out")}, "attention.dropout": nn.Dropout,
         "sa_layer_norm": nn.LayerNorm, "ffn.lin1": nn.Linear, "ffn.lin2": nn.Linear, "ffn.dropout": nn.Dropout,
         "ffn.activation": GELUActivation, "output_layer_norm": nn.LayerNorm,
         "attention": plain.DistilBertSelfAttention, "ffn": plain.FFN}  # fmt: skip


class DistilBertForSequenceClassification(plain.DistilBertForSequenceClassification):
    """Tells its encoder that the first token's hidden state is all it reads."""

    @wraps(plain.DistilBertForSequenceClassification.forward)
    def forward(self, *arguments: Any, **options: Any) -> Any:
        encoder = self.distilbert
        if type(encoder) is not DistilBertModel:
            return super().forward(*arguments, **options)
        encoder.first_only = True
        try:
            return super().forward(*arguments, **options)
        finally:
            del encoder.first_only

    @staticmethod
    def obstacles(model: plain.DistilBertForSequenceClassification) -> Iterator[tuple[str, str]]:
        return iter(())


class DistilBertModel(plain.DistilBertModel):
    """Computes in autocast's dtype, or that of the weights; returns hidden states in the dtype of the plain class."""

    first_only = False

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        **options: Any,
    ) -> BaseModelOutput | tuple[Any, ...]:
        states = None
        if input_ids is not None and inputs_embeds is None and position_ids is None:
            states = self.hidden_states(input_ids, attention_mask, options)
        if states is None:
            return as_plain(self, input_ids, attention_mask, inputs_embeds, position_ids, **options)
        output = BaseModelOutput(last_hidden_state=states)  # type: ignore[arg-type]
        wants_dict = options.get("return_dict", getattr(self.config, "return_dict", True))
        return output.to_tuple() if wants_dict is False else output

    def takes(self, ids: Tensor, options: dict[str, Any]) -> bool:
        """Returns whether the kernels compute what the plain class would of these ids."""
        words, config = self.embeddings.word_embeddings.weight, self.config
        heads = config.n_heads
        asked = [name for name, value in options.items() if name not in IGNORED and value]
        if asked or config.output_hidden_states or config.output_attentions or ids.dim() != 2 or ids.numel() == 0:
            return False
        if ids.shape[1] > self.embeddings.position_embeddings.num_embeddings:
            return False
        if config._attn_implementation not in ATTENTION or (self.training and self.transformer.gradient_checkpointing):
            return False
        supported = attention.supported(config.dim // heads)
        return rows.takes("layer", words, supported, num_heads=heads) and not any(
            hooked(module) or module.training != self.training for module in self.modules() if module is not self
        )

    @training_graphs.uncompiled
    def hidden_states(self, ids: Tensor, mask: Tensor | None, options: dict[str, Any]) -> Tensor | None:
        """Returns the last hidden states, with `first_only` of first tokens; None where the plain class must."""
        if not self.takes(ids, options):
            return None
        count, length = ids.shape
        first_only, packing = self.first_only, None
        if mask is not None:
            packing = pack(ids, mask) if mask.shape == ids.shape else None
            if packing is None:
                return None
        if packing is None or packing.is_full:
            lengths = torch.full((count,), length, dtype=torch.int32, device=ids.device)
            inputs, longest = [ids.int(), lengths], None
        else:
            inputs, longest = [packing.ids, packing.positions, packing.starts], packing.longest
        weights = self.embeddings.word_embeddings.weight
        dtype, dropouts = working_dtype(weights), self.dropouts()

        def function(tensors: training_graphs.Tensors, weights: training_graphs.Tensors) -> Tensor:
            return self.encode(batch_of(tensors, longest), weights, dropouts, dtype, first_only)

        parameters = list(self.parameters())
        if inputs[0].numel() <= GRAPHED:
            key = dtype, longest, first_only, dropouts
            states = training_graphs.run(self, function, inputs, parameters, key)
        else:
            states = function(inputs, parameters)
        states = states.to(weights.dtype)
        if first_only:
            return states[:, None]
        if packing is None or packing.is_full:
            return states.view(count, length, -1)
        whole = states.new_zeros(count * length, states.shape[1])
        return whole.index_copy(0, packing.order[: packing.total], states[: packing.total]).view(count, length, -1)

    def encode(
        self, batch: Tokens, weights: training_graphs.Tensors, dropouts: tuple[float, ...], dtype: torch.dtype,
        first_only: bool,
    ) -> Tensor:  # fmt: skip
        """Returns the hidden states of all tokens, or of first ones; `weights` are in the order of the state_dict."""
        layout, config = Layout.of(batch), self.config
        padding = self.embeddings.word_embeddings.padding_idx
        padding = -1 if padding is None else padding
        x = embed(batch, *weights[:4], self.embeddings.LayerNorm.eps, dropouts[0], dtype, padding)  # type: ignore
        for number, block in enumerate(blocks_of(self)):
            of_layer = tuple(weights[4 + 16 * number : 20 + 16 * number])
            is_last = number + 1 == len(self.transformer.layer)
            pair = dropouts[1 + 2 * number : 3 + 2 * number]
            eps = block.sa_layer_norm.eps
            x = layer(x, layout, first_only and is_last, config.n_heads, eps, pair, of_layer)  # type: ignore[arg-type]
        return x

    def dropouts(self) -> tuple[float, ...]:
        """Returns the embeddings' dropout, then each layer's of attention weights and of the feed-forward output."""
        if not self.training:
            return (0.0,) * (1 + 2 * len(self.transformer.layer))
        of_layers = ((block.attention.dropout.p, block.ffn.dropout.p) for block in blocks_of(self))
        return self.embeddings.dropout.p, *(p for pair in of_layers for p in pair)

    @staticmethod
    def obstacles(model: plain.DistilBertModel) -> Iterator[tuple[str, str]]:
        """Yields what the kernels cannot take: a module's name and the reason."""
        config, embeddings = model.config, model.embeddings
        if type(embeddings) is not plain.Embeddings:
            yield "embeddings", f"{type(embeddings).__name__}; expected Embeddings"
        else:
            yield from of_parts("embeddings", embeddings, EMBEDDINGS)
        if config.n_layers != len(model.transformer.layer) or not config.n_layers:
            yield "transformer", f"{len(model.transformer.layer)} layers; config.json says {config.n_layers}"
        for number, block in enumerate(blocks_of(model)):
            name = f"transformer.layer.{number}"
            if type(block) is not plain.TransformerBlock:
                yield name, f"{type(block).__name__}; expected TransformerBlock"
                continue
            yield from of_parts(name, block, BLOCK)
            if block.sa_layer_norm.eps != block.output_layer_norm.eps:
                yield name, "layer norms of different eps"
        if config.dim > rows.MAX_DIM or not attention.supported(config.dim // config.n_heads):
            most = f"at most {rows.MAX_DIM}, and {attention.MAX_HEAD} a head"
            yield "", f"dim={config.dim} of {config.n_heads} heads; {most}"
        if config.activation != "gelu":
            yield "", f"activation={config.activation}; expected gelu"
        if config._attn_implementation not in ATTENTION:
            yield "", f"attention {config._attn_implementation}; expected one of {', '.join(ATTENTION)}"


def blocks_of(model: plain.DistilBertModel) -> list[Any]:
    return list(model.transformer.layer)


class Packing(NamedTuple):
    """A batch's real tokens, one after another, and their places in it; `is_full` where no place is padding."""

    is_full: bool
    total: int
    longest: int
    order: Tensor
    ids: Tensor
    positions: Tensor
    starts: Tensor


def pack(ids: Tensor, mask: Tensor) -> Packing | None:
    """Returns the packed tokens; None where a sentence begins with padding. It waits for the device once.

    After the real tokens there are more, which belong to no sentence, for few different sizes.
    """
    is_token = mask != 0
    lengths = is_token.sum(1)
    total, longest, has_first = torch.stack([lengths.sum(), lengths.max(), is_token[:, 0].all().long()]).tolist()
    if not has_first:
        return None
    if total == ids.numel():
        return Packing(True, total, longest, ids, ids, ids, ids)
    size = -(-total // BUCKET) * BUCKET
    flat = is_token.flatten()
    place = torch.where(flat, flat.cumsum(0) - 1, size)
    order = torch.zeros(size + 1, dtype=torch.int64, device=ids.device)
    order = order.scatter_(0, place, torch.arange(len(flat), device=ids.device))[:size]
    starts = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    packed = ids.flatten()[order].int(), (order % ids.shape[1]).int(), starts
    return Packing(False, total, -(-longest // LENGTHS) * LENGTHS, order, *packed)


def batch_of(tensors: training_graphs.Tensors, longest: int | None) -> Tokens:
    """Returns ids and lengths as padded, ids, positions and starts as packed tokens. Nothing here reads labels."""
    if longest is None:
        ids, lengths = tensors
        return PaddedTokens(ids, lengths, lengths.long())
    ids, positions, starts = tensors
    return PackedTokens(ids, positions, starts, starts[:-1].long(), longest)


def of_parts(prefix: str, parent: nn.Module, parts: dict[str, type[nn.Module]]) -> Iterator[tuple[str, str]]:
    """Yields why the kernels cannot take modules below `parent`, of which they expect these classes."""
    for path, kind in parts.items():
        module, name = parent.get_submodule(path), f"{prefix}.{path}"
        if type(module) is not kind:
            yield name, f"{type(module).__name__}; expected {kind.__name__}"
        elif isinstance(module, nn.Linear) and module.bias is None:
            yield name, "no bias; expected one"
        elif isinstance(module, nn.LayerNorm) and (module.weight is None or module.bias is None):
            yield name, "no weight or bias; expected both"
        elif isinstance(module, nn.Embedding) and (module.max_norm or module.sparse or module.scale_grad_by_freq):
            yield name, "max_norm, sparse or scale_grad_by_freq; expected none of them"
        elif isinstance(module, nn.Embedding) and path == "position_embeddings" and module.padding_idx is not None:
            yield name, "padding_idx; expected none"


def as_plain(module: DistilBertModel, *arguments: Any, **options: Any) -> Any:
    """Calls the plain forward, in the plain class: Hugging Face looks up by it which outputs to capture."""
    fast = type(module)
    module.__class__ = plain.DistilBertModel  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return module.forward(*arguments, **options)
    finally:
        module.__class__ = fast
