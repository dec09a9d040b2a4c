"""Contraction, attention, norm and linear in plain torch, the reference for the fused kernels."""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from src.batches.molecular_graphs import Graph
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.plan import Plan


def contract(
    hidden: Float[Tensor, "edges mid"], columns: Float[Tensor, "edges inputs"], mixed: Float[Tensor, " _"], plan: Plan
) -> Float[Tensor, "edges outputs"]:
    """Computes the messages of one group in the edge frames; columns outside the group are zero.

    Args:
        hidden: output of the hidden layers of the group's radial network.
        columns: source features in the layout `plan.source`.
        mixed: `plan.mix` of the group's weight.
    """
    edges, mid = hidden.shape
    out: dict[int, Tensor] = {}  # by first column
    for block in plan.blocks:
        size, shape = block.num_inputs * block.channels, (block.num_inputs, block.channels)
        offsets = (block.weight_a, block.weight_b)[: 2 if block.m else 1]
        weights = [mixed[offset * mid : (offset + size) * mid].view(size, mid) for offset in offsets]
        radial = (hidden @ torch.cat(weights).t()).view(edges, len(offsets) * shape[0], shape[1])
        plus = columns.narrow(1, block.plus, block.num_inputs)
        if block.m:
            minus = columns.narrow(1, block.minus, block.num_inputs)
            rows = torch.stack([torch.cat([plus, minus], 1), torch.cat([minus, -plus], 1)], 1)
        else:
            rows = plus[:, None]
        result = torch.bmm(rows, radial)
        for piece in block.pieces:
            out[piece.plus] = result[:, 0, piece.begin : piece.begin + piece.width]
            out[piece.minus] = result[:, -1, piece.begin : piece.begin + piece.width]
    pieces, column = [], 0
    for begin in sorted(out):
        if begin > column:
            pieces.append(columns.new_zeros(edges, begin - column))
        pieces.append(out[begin])
        column = begin + out[begin].shape[1]
    if column < plan.num_columns:
        pieces.append(columns.new_zeros(edges, plan.num_columns - column))
    return torch.cat(pieces, 1)


def attend(
    value: Float[Tensor, "edges value_features"],
    key: Float[Tensor, "edges key_features"],
    query: Float[Tensor, "nodes key_features"],
    graph: Graph,
    num_heads: int,
    value_fiber: Fiber,
    key_fiber: Fiber,
) -> Float[Tensor, "nodes value_features"]:
    """Computes for each node and head the softmax(<key, query> / sqrt(columns))-weighted sum of incoming values.

    Heads split every degree's channels in order; `columns` counts the key's columns of all heads, as published. Nodes
    without incoming edges get 0; padded edges are ignored. Logits, weights and sums are float32 or wider.
    """
    wide = torch.promote_types(value.dtype, torch.float32)
    nodes, edges = len(query), torch.arange(len(key), device=key.device)
    # Padded edges form an extra segment, which is dropped, so that not even their NaNs reach a node.
    segment = graph.dst.where(edges < graph.dst_ptr[-1], nodes).long()
    products = [
        (k.to(wide) * q[graph.dst].to(wide)).sum((1, 3))
        for k, q in zip(_by_head(key, key_fiber, num_heads), _by_head(query, key_fiber, num_heads), strict=True)
    ]
    logits = sum(products[1:], products[0]) / math.sqrt(key_fiber.num_features)
    weights = segment_softmax(logits, segment, nodes + 1)[:, None, :, None]
    weighted = [(weights * v.to(wide)).flatten(1) for v in _by_head(value, value_fiber, num_heads)]
    sums = weights.new_zeros(nodes + 1, value_fiber.num_features).index_add(0, segment, torch.cat(weighted, 1))
    return sums[:nodes].to(value.dtype)


def segment_softmax(
    logits: Float[Tensor, "edges heads"], segment: Int64[Tensor, " edges"], segments: int
) -> Float[Tensor, "edges heads"]:
    """Computes the softmax over the rows of each segment, for each column."""
    rows = segment[:, None].expand(logits.shape)
    largest = logits.new_full((segments, logits.shape[1]), -torch.inf).scatter_reduce(0, rows, logits.detach(), "amax")
    powers = (logits - largest[segment]).exp()
    return powers / powers.new_zeros(largest.shape).index_add(0, segment, powers)[segment]


def _by_head(x: Float[Tensor, "rows features"], fiber: Fiber, num_heads: int) -> list[Float[Tensor, "rows _ heads _"]]:
    """Returns features as [rows, components, heads, channels]: one tensor if channels are equal, or one per degree."""
    if fiber.equal_channels:
        return [x.unflatten(1, (-1, num_heads, fiber.equal_channels // num_heads))]
    return [fiber.part(x, degree).unflatten(2, (num_heads, -1)) for degree in fiber]


def norm(
    features: Float[Tensor, "nodes features"],
    weight: Float[Tensor, " channels"],
    bias: Float[Tensor, " channels"],
    fiber: Fiber,
    smallest: float,
    eps: float,
) -> Float[Tensor, "nodes features"]:
    """Rescales every channel to ReLU(normalised length), see `norm.NormSE3`. Lengths are clamped to `smallest`."""
    wide = torch.promote_types(features.dtype, torch.float32)
    counts = [count for _, count in fiber.items()]
    parts = [fiber.part(features, degree).to(wide) for degree in fiber]
    lengths = torch.cat([part.square().sum(1) for part in parts], 1).clamp_min(smallest**2).sqrt()
    weight, bias = weight.to(wide), bias.to(wide)
    if fiber.equal_channels:
        normalised = F.group_norm(lengths, len(counts), weight, bias, eps)
    else:
        columns = zip(*(x.split(counts, d) for x, d in ((lengths, 1), (weight, 0), (bias, 0))), counts, strict=True)
        normalised = torch.cat([F.layer_norm(part, (count,), w, b, eps) for part, w, b, count in columns], 1)
    scales = (F.relu(normalised) / lengths).split(counts, 1)
    scaled = [(part * scale[:, None]).flatten(1) for part, scale in zip(parts, scales, strict=True)]
    return torch.cat(scaled, 1).to(features.dtype)


def linear(
    inputs: tuple[Float[Tensor, "nodes _"], ...], weights: Float[Tensor, "degrees outer inner"], fiber_out: Fiber
) -> Float[Tensor, "nodes features"]:
    """Multiplies every degree's channels by its matrix; all fibers have the output's degrees and equal channels.

    The matrices' inner columns are those of the inputs in order. One product per input, batched over components.
    """
    by_component = torch.cat([w.expand(2 * d + 1, -1, -1) for d, w in zip(fiber_out, weights, strict=True)])
    parts = [x.unflatten(1, (len(by_component), -1)).transpose(0, 1) for x in inputs]
    matrices = by_component.transpose(1, 2).split([part.shape[2] for part in parts], 1)
    terms = [part.bmm(matrix) for part, matrix in zip(parts, matrices, strict=True)]
    return sum(terms[1:], terms[0]).transpose(0, 1).flatten(1)
