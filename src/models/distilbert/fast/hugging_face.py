"""Hugging Face's DistilBERT encoder by the kernels of `embedding` and `layer`.

Padding is dropped: where some of the mask is 0, the real tokens are packed, and padding's hidden states are zeros. A
sentence classifier reads the first token's state alone, so the last layer computes that one alone. The classes keep the
plain ones' names, which Hugging Face writes into config.json.
"""

from collections.abc import Iterator, Sequence
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput
from transformers.models.distilbert import modeling_distilbert as plain

from src.batches.tokens import PackedTokens, PaddedTokens, Tokens
from src.gpu import training_graphs
from src.gpu.hooks import Parts, parts_of, uncompiled
from src.gpu.triton_helpers import power_of_2, working_dtype
from src.models.distilbert.fast import attention, rows
from src.models.distilbert.fast.embedding import embed
from src.models.distilbert.fast.layer import Parameters, empty_casts, layer, sources_of, targets_of
from src.models.distilbert.fast.packing import PackedMemory, pack
from src.models.distilbert.layout import Layout

ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")  # which all compute the same
IGNORED = ("return_dict", "num_items_in_batch")  # arguments that change nothing in the encoder
SHORTEST = 64  # bound of short sentences' lengths: one for all, for few graphs
EAGER = "reprise_eager"  # an encoder's attribute in one call: the model around it warms up for graphs
HEAD = 4  # parameters of a classifier after its encoder's
GRAPHED = 65536  # most tokens of a batch that CUDA graphs are kept for
EMBEDDINGS = {"word_embeddings": nn.Embedding, "position_embeddings": nn.Embedding, "LayerNorm": nn.LayerNorm,
              "dropout": nn.Dropout}  # fmt: skip
BLOCK = {**{f"attention.{name}_lin": nn.Linear for name in ("q", "k", "v", "out")}, "attention.dropout": nn.Dropout,
         "sa_layer_norm": nn.LayerNorm, "ffn.lin1": nn.Linear, "ffn.lin2": nn.Linear, "ffn.dropout": nn.Dropout,
         "ffn.activation": GELUActivation, "output_layer_norm": nn.LayerNorm,
         "attention": plain.DistilBertSelfAttention, "ffn": plain.FFN}  # fmt: skip


class DistilBertForSequenceClassification(plain.DistilBertForSequenceClassification):
    """Tells its encoder that the first token's hidden state is all it reads; in training it runs as CUDA graphs."""

    @wraps(plain.DistilBertForSequenceClassification.forward)
    def forward(self, *arguments: Any, **options: Any) -> Any:
        encoder = self.distilbert
        if type(encoder) is not DistilBertModel:
            return super().forward(*arguments, **options)
        output = self.graphed(*arguments, **options)
        if output is not None:
            return output
        encoder.first_only = True
        try:
            return super().forward(*arguments, **options)
        finally:
            del encoder.first_only

    @uncompiled
    def graphed(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        **options: Any,
    ) -> SequenceClassifierOutput | tuple[Any, ...] | None:
        """Returns the output, computed by graphs of encoder, head and loss; None where these must not compute it."""
        if input_ids is None or inputs_embeds is not None or position_ids is not None or input_ids.numel() > GRAPHED:
            return None
        graphs, parts = training_graphs.graphs_of(self, input_ids), parts_of(self)
        if graphs is None or not self.takes(parts, input_ids, attention_mask, labels, options):
            return None
        parameters = parts.parameters(self)
        if len(parameters) != 4 + 16 * self.config.n_layers + HEAD:  # some are shared, or are not there
            return None
        places, dtype = training_graphs.places_of(parameters), working_dtype(parameters[0])
        batch = prepare(graphs, input_ids, attention_mask, parameters[:-HEAD], dtype)
        if batch is None:
            return None
        encoder: DistilBertModel = self.distilbert  # type: ignore[assignment]
        dropouts, labelled = encoder.dropouts(), [] if labels is None else [labels]
        count = len(batch.inputs)

        def function(tensors: training_graphs.Tensors, weights: training_graphs.Tensors) -> tuple[Tensor, ...]:
            of_batch, of_labels = (
                tensors[:count] or tensors[-len(batch.static) :],
                tensors[count : count + len(labelled)],
            )
            tokens = batch_of(of_batch, batch.longest)
            states = encoder.encode(tokens, weights[:-HEAD], dropouts, dtype, True, batch.casts)
            return self.head(states.to(weights[0].dtype), weights[-HEAD:], *of_labels)

        key = dtype, batch.longest, dropouts, self.dropout.p, self.config.problem_type, self.num_labels
        inputs = [*batch.inputs, *labelled]
        pair = graphs.pair_of(function, inputs, parameters, places, (*key, len(labelled)), batch.static)
        if pair is None:
            vars(encoder)[EAGER] = True
            return None
        outs = graphs.replay(pair, inputs, parameters)
        output = SequenceClassifierOutput(loss=outs[0] if labelled else None, logits=outs[-1])
        return in_kind(output, self.config, options)

    def takes(
        self, parts: Parts, ids: Tensor, mask: Tensor | None, labels: Tensor | None, options: dict[str, Any]
    ) -> bool:
        """Returns whether graphs of encoder, head and loss compute what the plain class would."""
        kinds = type(self.pre_classifier), type(self.dropout), type(self.classifier)
        return (
            kinds == (nn.Linear, nn.Dropout, nn.Linear)
            and parts.are_plain(self.training)
            and DistilBertModel.takes(self.distilbert, ids, options, are_plain=True)  # type: ignore[arg-type]
            and (mask is None or (mask.shape == ids.shape and mask.device == ids.device))
            and (labels is None or (labels.device == ids.device and not labels.requires_grad))
        )

    def head(
        self, states: Tensor, weights: training_graphs.Tensors, labels: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Returns loss, if there are labels, and logits, as the plain class computes them with these weights."""
        encoder: DistilBertModel = self.distilbert  # type: ignore[assignment]
        layers = (self.pre_classifier, self.classifier)
        places = [(layer._parameters, name) for layer in layers for name in ("weight", "bias")]
        before = [parameters[name] for parameters, name in places]
        encoder.states = states[:, None]
        try:
            for (parameters, name), weight in zip(places, weights, strict=True):
                parameters[name] = weight  # type: ignore[assignment]
            output: Any = super().forward(states, labels=labels, return_dict=True)  # type: ignore[call-arg]
        finally:
            del encoder.states
            for (parameters, name), weight in zip(places, before, strict=True):
                parameters[name] = weight
        return (output.logits,) if labels is None else (output.loss, output.logits)

    @staticmethod
    def obstacles(model: plain.DistilBertForSequenceClassification) -> Iterator[tuple[str, str]]:
        return iter(())


class DistilBertModel(plain.DistilBertModel):
    """Computes in autocast's dtype, or that of the weights; returns hidden states in the dtype of the plain class."""

    first_only = False
    states: Tensor | None = None  # first tokens' hidden states that are computed already

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        **options: Any,
    ) -> BaseModelOutput | tuple[Any, ...]:
        states = self.states
        if states is None and input_ids is not None and inputs_embeds is None and position_ids is None:
            states = self.hidden_states(input_ids, attention_mask, options)
        if states is None:
            return as_plain(self, input_ids, attention_mask, inputs_embeds, position_ids, **options)
        return in_kind(BaseModelOutput(last_hidden_state=states), self.config, options)  # type: ignore[arg-type]

    def takes(self, ids: Tensor, options: dict[str, Any], are_plain: bool | None = None) -> bool:
        """Returns whether the kernels compute what the plain class would of these ids; `are_plain` as of its parts."""
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
        if not rows.takes("layer", words, supported, num_heads=heads):
            return False
        return parts_of(self).are_plain(self.training) if are_plain is None else are_plain

    @uncompiled
    def hidden_states(self, ids: Tensor, mask: Tensor | None, options: dict[str, Any]) -> Tensor | None:
        """Returns the last hidden states, with `first_only` of first tokens; None where the plain class must."""
        is_eager = vars(self).pop(EAGER, False)
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

        parameters = parts_of(self).parameters(self)
        if inputs[0].numel() <= GRAPHED and not is_eager:
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
        first_only: bool, casts: "Casts | None" = None,
    ) -> Tensor:  # fmt: skip
        """Returns the hidden states of all tokens, or of first ones; `weights` are in the order of the state_dict."""
        layout, config = Layout.of(batch), self.config
        padding = self.embeddings.word_embeddings.padding_idx
        padding = -1 if padding is None else padding
        x = embed(batch, *weights[:4], self.embeddings.LayerNorm.eps, dropouts[0], dtype, padding)  # type: ignore
        for number, block in enumerate(blocks_of(self)):
            of_layer, cast = layer_weights(weights, number), casts and casts.layers[number]
            is_last = number + 1 == len(self.transformer.layer)
            pair = dropouts[1 + 2 * number : 3 + 2 * number]
            eps = block.sa_layer_norm.eps
            x = layer(x, layout, first_only and is_last, config.n_heads, eps, pair, of_layer, cast)  # type: ignore
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


class Casts:
    """Memory for the layers' weights in the products' dtype, which graphs read where it is."""

    def __init__(self, weights: Sequence[Tensor], dtype: torch.dtype) -> None:
        layers = [Parameters(*layer_weights(weights, number)) for number in range((len(weights) - 4) // 16)]
        self.layers = [empty_casts(parameters, dtype) for parameters in layers]
        self._targets = [target for cast in self.layers for target in targets_of(cast)]
        place = {id(weight): number for number, weight in enumerate(weights)}
        self._order = [place[id(source)] for parameters in layers for source in sources_of(parameters)]

    def write(self, weights: Sequence[Tensor]) -> None:
        """Casts the weights as they are now."""
        with torch.no_grad():
            sources = [weights[number] for number in self._order]
            torch._foreach_copy_(self._targets, sources)  # pyright: ignore[reportPrivateImportUsage]


class Prepared(NamedTuple):
    """A batch for graphs.

    inputs, static: padded ids and lengths, which are copied, or packed ids, positions and starts, which are read where
        they are.
    longest: a bound of the sentences' lengths; None if they are padded.
    """

    inputs: list[Tensor]
    static: list[Tensor]
    longest: int | None
    casts: Casts | None


def prepare(
    graphs: training_graphs.TrainingGraphs, ids: Tensor, mask: Tensor | None, weights: Sequence[Tensor],
    dtype: torch.dtype,
) -> Prepared | None:  # fmt: skip
    """Packs a batch and casts weights; None where a sentence begins with padding.

    The host must know how many tokens there are. The device casts the weights while the host gets the number and
    launches the graph of it.
    """
    graphs.turns += 1  # what an earlier backward pass read is gone
    memory: PackedMemory | None = None
    if mask is not None:
        memory = graphs.kept("packed", lambda: PackedMemory(GRAPHED, ids.device))
        memory.start(ids, mask)
    casts: Casts | None = None
    if dtype != weights[0].dtype:
        key = dtype, tuple(weight.data_ptr() for weight in weights)
        casts = graphs.kept(key, lambda: Casts(weights, dtype))
        casts.write(weights)
    count, length = ids.shape
    if memory is not None:
        lengths = memory.lengths(count)
        if min(lengths) < 0:
            return None
        if sum(lengths) < ids.numel():
            longest = max(SHORTEST, power_of_2(max(lengths)))  # tiles of attention beyond a sentence end at once
            return Prepared([], memory.inputs(count, sum(lengths)), longest, casts)
    padded = [ids.int(), torch.full((count,), length, dtype=torch.int32, device=ids.device)]
    return Prepared(padded, [], None, casts)


def layer_weights(weights: training_graphs.Tensors, number: int) -> tuple[Tensor, ...]:
    return tuple(weights[4 + 16 * number : 20 + 16 * number])


def in_kind(output: Any, config: Any, options: dict[str, Any]) -> Any:
    """Returns the output as it was asked for: a tuple, or itself."""
    wants_dict = options.get("return_dict")
    wants_dict = getattr(config, "return_dict", True) if wants_dict is None else wants_dict
    return output.to_tuple() if wants_dict is False else output


def blocks_of(model: plain.DistilBertModel) -> list[Any]:
    return list(model.transformer.layer)


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
