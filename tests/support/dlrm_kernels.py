"""DLRM's fused kernels against plain torch in float64: on a CPU (interpreted) and on a GPU."""

from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from src.batches.clicks import EmbeddingTable
from src.models.dlrm.embeddings import PlainEmbeddings, Rule
from src.models.dlrm.fast.embeddings import FastEmbeddings
from src.models.dlrm.interaction import cat_features, cross, dot_features
from tests.support.kernel_differences import Difference, difference, error, random


def dot(fused: Any, samples: int, tables: int, dim: int, dtype: torch.dtype, device: str = "cpu") -> Difference:
    """Compares the dot interaction and its gradients with float64."""
    assert fused.interaction.supported(tables, dim)
    dense, sparse = (
        random(*shape, seed=len(shape), device=device) for shape in ((samples, dim), (samples, tables, dim))
    )
    overflow = torch.zeros((), device=device)
    result = difference(
        lambda d, s: fused.interaction.dot_features(d, s, overflow), dot_features, [dense.to(dtype), sparse.to(dtype)]
    )
    assert float(overflow) == 0
    return result


def overflow_flags(fused: Any, wrong: float, device: str = "cpu") -> tuple[float, float]:
    """Returns the flag of the dot interaction's overflows after a gradient of zeros, and after one with `wrong`."""
    dense = torch.ones(3, 8, device=device).half()
    sparse = torch.full((3, 2, 8), 4.0, device=device).half().requires_grad_()
    overflow = torch.zeros((), device=device)
    features = fused.interaction.dot_features(dense, sparse, overflow)
    gradient = torch.zeros_like(features)
    features.backward(gradient, retain_graph=True)
    before = float(overflow)
    gradient[2, 8 + 2] = wrong
    features.backward(gradient)
    return before, float(overflow)


def dot_of_rows(
    fused: Any,
    tables: Sequence[EmbeddingTable],
    samples: int,
    dim: int,
    rows: torch.dtype,
    dtype: torch.dtype,
    apart: bool,
    device: str = "cpu",
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns features, gradients of the dense vectors and of the tables', and overflow: of rows, and of a lookup."""
    torch.manual_seed(0)
    with torch.device(device):
        embeddings = FastEmbeddings(tables, dim).to(rows)
    embeddings = deepcopy(embeddings) if apart else embeddings
    ids = torch.cat([some_ids(table, samples) for table in tables]).to(device)
    results = []
    for gathered in (True, False):
        dense = random(samples, dim, seed=1, device=device).to(dtype).requires_grad_()
        embeddings.overflow.zero_()
        if gathered:
            features = fused.interaction.gathered_features(dense, embeddings, ids)
        else:
            with torch.autocast(torch.device(device).type, dtype, enabled=dtype != rows):
                sparse = embeddings(ids, samples)
            features = fused.interaction.dot_features(dense, sparse, embeddings.overflow)
        weights = random(*features.shape, seed=2, device=device).to(dtype)
        weights[0, dim] = torch.inf
        features.backward(weights)
        gradients = [dense.grad, embeddings.pending.pop().gradient]
        results.append([features, *map(torch.nan_to_num, gradients), embeddings.overflow.clone()])
    return results[0], results[1]


def cross_layers(
    fused: Any, samples: int, tables: int, dim: int, layers: int, rank: int, dtype: torch.dtype, device: str = "cpu"
) -> Difference:
    """Compares cross layers and their gradients with float64; the float32 parameters are representable in `dtype`."""
    width = (tables + 1) * dim
    inputs = [random(samples, dim, seed=1, device=device), random(samples, tables, dim, seed=2, device=device)]
    parameters = [
        random(*shape, seed=3 + 3 * layer + number, device=device) / shape[-1] ** 0.5
        for layer in range(layers)
        for number, shape in enumerate([(rank, width), (width, rank), (width,)])
    ]
    overflow = torch.zeros((), device=device)

    def plain(dense: Tensor, sparse: Tensor, *parameters: Tensor) -> Tensor:
        x = x0 = cat_features(dense, sparse)
        for number in range(layers):
            x = cross(x0, x, *parameters[3 * number : 3 * number + 3])
        return x

    result = difference(
        lambda d, s, *p: fused.cross.cross_net(d, s, overflow, None, *p),
        plain,
        [*(x.to(dtype) for x in inputs), *(p.to(dtype).float() for p in parameters)],
    )
    assert float(overflow) == 0
    return result


def layers(
    fused: Any,
    widths: Sequence[int],
    logit: bool,
    samples: int,
    dtype: torch.dtype,
    device: str = "cpu",
    is_data: bool = False,
) -> Difference:
    """Compares an MLP and its gradients with float64; the float32 parameters are representable in `dtype`.

    The inputs' gradients come first, unless these are data.
    """
    assert fused.mlp.supported((*widths, 1) if logit else tuple(widths), logit)
    # Large biases: a value near 0 that passes a ReLU in one dtype only would be a large difference.
    parameters: list[Tensor] = []
    for number, (fan_in, fan_out) in enumerate(pairwise((*widths, 1) if logit else widths)):
        parameters.append(random(fan_out, fan_in, seed=2 * number, device=device) / fan_in**0.5)
        parameters.append(random(fan_out, seed=2 * number + 1, device=device))
    parameters = [parameter.to(dtype).float() for parameter in parameters]
    inputs = random(samples, widths[0], seed=90, device=device).to(dtype)

    def plain(x: Tensor, *parameters: Tensor) -> Tensor:
        hidden = len(parameters) // 2 - logit
        for number in range(len(parameters) // 2):
            x = x @ parameters[2 * number].T + parameters[2 * number + 1]
            x = x.relu() if number < hidden else x
        return x

    if is_data:
        return difference(
            lambda *p: fused.mlp.mlp(inputs, logit, *p), lambda *p: plain(inputs.to(p[0]), *p), parameters
        )
    return difference(lambda x, *p: fused.mlp.mlp(x, logit, *p), plain, [inputs, *parameters])


class Updated(NamedTuple):
    """One update by the kernels compared with plain torch in float64."""

    vectors: float  # error of the lookup
    weights: float  # largest error of a weight's change, relative to the largest change
    unchanged: bool  # whether all other rows kept their values
    embeddings: PlainEmbeddings


def updated(
    fused: Any,
    tables: Sequence[EmbeddingTable],
    batch: int,
    dim: int,
    dtype: torch.dtype,
    device: str = "cpu",
    optimizer: Rule = "sgd",
    found_inf: float | None = None,
    loss_scale: float | None = None,
    apart: bool = False,
) -> Updated:
    """Compares lookup and update for a batch with rare and frequent ids; tables are adjacent or `apart`."""
    torch.manual_seed(0)
    with torch.device(device):
        kept = PlainEmbeddings(tables, dim, optimizer, eps=1e-3)
    kept = deepcopy(kept) if apart else kept
    assert fused.tables.are_adjacent(list(kept.weights)) is not apart
    with torch.no_grad():
        for weight in kept.weights:
            weight.copy_(weight.half())  # representable in every dtype
    exact = deepcopy(kept).double()
    before = [weight.detach().clone() for weight in kept.weights]
    ids = torch.cat([some_ids(table, batch) for table in tables]).to(device)
    with torch.no_grad():
        actual = fused.tables.look_up(list(kept.weights), tuple(tables), ids, batch, dtype)
        expected_vectors = exact.look_up(ids, batch, torch.float64)
    vectors = error(actual, expected_vectors)

    gradient = (random(batch, len(tables), dim, seed=1, device=device) + 0.5).to(dtype)
    rate = torch.tensor(0.25, device=device)
    skip, scale = (None if value is None else torch.tensor(value, device=device) for value in (found_inf, loss_scale))
    rule = fused.tables.Rule(
        rate,
        torch.zeros(()).to(rate) if skip is None else skip,
        torch.ones(()).to(rate) if scale is None else scale,
        list(kept.accumulators.buffers()),
        kept.eps,
    )
    order = fused.tables.row_order_on_side_stream(tuple(tables), ids, batch)
    fused.tables.apply(list(kept.weights), tuple(tables), order, gradient, rule)
    exact(ids, batch).backward(gradient.double())
    exact.update(rate.double(), skip, scale)

    changes = [(a.detach() - b).double() for a, b in zip(kept.weights, before, strict=True)]
    expected = [(a.detach() - b).double() for a, b in zip(exact.weights, before, strict=True)]
    largest = max(float(change.abs().max()) for change in expected) or 1.0
    errors = (float((a - b).abs().max()) for a, b in zip(changes, expected, strict=True))
    rest = all(bool((change[plain == 0] == 0).all()) for change, plain in zip(changes, expected, strict=True))
    return Updated(vectors, max(errors) / largest, rest, kept)


def update_of_parts(
    tables: Sequence[EmbeddingTable], optimizer: Rule, device: str = "cpu"
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Returns all tables after an update by a batch of 12, by its parts of 7 and 5, and by those without kernels."""
    counts, dim = (7, 5), 8
    torch.manual_seed(0)
    with torch.device(device):
        embeddings = FastEmbeddings(tables, dim, optimizer, eps=1e-3)
    gradient = random(sum(counts), len(tables), dim, seed=1, device=device)
    of_parts = [[some_ids(table, count) for table in tables] for count in counts]
    ids = torch.cat([torch.cat(of_table) for of_table in zip(*of_parts, strict=True)]).to(device)
    whole, parts, unfused = (deepcopy(embeddings) for _ in range(3))
    whole(ids, sum(counts)).backward(gradient)
    for ids_of_part, gradient_of_part in zip(of_parts, gradient.split(counts), strict=True):
        for several in (parts, unfused):
            several(torch.cat(ids_of_part).to(device), len(gradient_of_part)).backward(gradient_of_part)
    assert parts.pending[0].order is not None
    unfused.pending = [part._replace(order=None) for part in unfused.pending]
    for module in (whole, parts, unfused):
        module.update(torch.tensor(0.25, device=device))
    assert not any(torch.equal(a, b) for a, b in zip(whole.weights, embeddings.weights, strict=True))
    return list(whole.weights), list(parts.weights), list(unfused.weights)


def narrow_look_up(
    fused: Any, tables: Sequence[EmbeddingTable], batch: int, dim: int, dtype: torch.dtype, device: str = "cpu"
) -> float:
    """Returns the error of vectors from tables of that dtype against sums in float64."""
    torch.manual_seed(0)
    with torch.device(device):
        narrow = PlainEmbeddings(tables, dim).to(dtype)
    ids = torch.cat([some_ids(table, batch) for table in tables]).to(device)
    with torch.no_grad():
        vectors = fused.tables.look_up(list(narrow.weights), tuple(tables), ids, batch, dtype)
        return error(vectors, deepcopy(narrow).double().look_up(ids, batch, torch.float64))


def some_ids(table: EmbeddingTable, batch: int) -> Tensor:
    """Returns ids of which half are the table's last one and half are uniform."""
    generator = torch.Generator().manual_seed(table.cardinality)
    shape = (batch * table.hotness,)
    ids = torch.randint(table.cardinality, shape, generator=generator, dtype=torch.int32)
    return ids.where(torch.rand(shape, generator=generator) < 0.5, table.cardinality - 1)
