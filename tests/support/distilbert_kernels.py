"""DistilBERT's fused kernels against plain torch in float64: on a CPU (interpreted) and on a GPU.

With dropout, plain torch uses the kernels' masks, which are read off their forward passes.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import src.models.distilbert.fast.embedding
import src.models.distilbert.fast.head
import src.models.distilbert.fast.layer  # noqa: F401 # all so that `fast` has its modules, whichever test runs first
from src.batches.tokens import PackedTokens, PaddedTokens
from src.models.distilbert import Sizes
from src.models.distilbert.layout import Layout, Tokens, token_mask
from src.models.distilbert.network import EPS, Block, Dropout
from tests.support.hugging_face import randomise
from tests.support.kernel_differences import Difference, difference, error, random

Back = Callable[[Tensor], Sequence[Tensor]]


class Pair(torch.autograd.Function):
    """Applies a function that returns its value and its backward function."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., tuple[Tensor, Back]], *inputs: Tensor) -> Tensor:
        value, ctx.back = function(*inputs)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.back(grads[0].contiguous())


def seeded(fused: Any, dropout: float, device: str, seed: int = 5) -> Any:
    return fused.rows.Drop(dropout, torch.tensor(seed, device=device)) if dropout else fused.rows.Drop()


def sentences(lengths: Sequence[int], padded_to: int | None, padding: int = 0, device: str = "cpu") -> Tokens:
    """Returns sentences of random words: padded, or packed with `padding` more tokens at the end."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor(lengths, dtype=torch.int32)
    labels = torch.zeros(len(lengths), dtype=torch.int64).to(device)
    length = padded_to or max(lengths)
    ids = torch.randint(1, 40, (len(lengths), length), generator=generator, dtype=torch.int32)
    is_token = token_mask(sizes, length)
    if padded_to:
        return PaddedTokens((ids * is_token).to(device), sizes.to(device), labels)
    positions = torch.arange(length, dtype=torch.int32).expand_as(ids)
    ends = F.pad(sizes.cumsum(0, dtype=torch.int32), (1, 0))
    ids, positions = (F.pad(x[is_token], (0, padding)) for x in (ids, positions))
    return PackedTokens(ids.to(device), positions.to(device), ends.to(device), labels, length)


def norm(
    fused: Any, rows: int, dim: int, dtype: torch.dtype, device: str = "cpu", dropout: float = 0.0
) -> tuple[Difference, float]:
    """Compares x, residual, weight and bias; returns also the error of the gradient of a bias in x."""
    drop = seeded(fused, dropout, device)
    x, residual = (random(rows, dim, seed=seed, device=device).to(dtype) for seed in (1, 2))
    weight, bias = (random(dim, seed=seed, device=device).float() for seed in (3, 4))
    of_bias: list[Tensor] = []

    def kernel(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Back]:
        out, statistics = fused.rows.add_norm(x, residual, weight, bias, EPS, drop)

        def back(grad: Tensor) -> Sequence[Tensor]:
            partials = fused.rows.new_partials(rows, 3 * dim + 1, weight)[:, : 3 * dim]
            grads = fused.rows.add_norm_backward(grad, x, residual, weight, statistics, drop, partials)
            *of_norm, of_x = partials.sum(0).split(dim)
            of_bias.append(of_x)
            return *grads, *of_norm

        return out, back

    kept = mask_of_rows(fused, rows, dim, drop, device)

    def plain(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        total = residual + x * kept
        total.register_hook(lambda grad: of_bias.append((grad * kept).sum(0)))
        return F.layer_norm(total, (dim,), weight, bias, EPS)

    result = difference(lambda *inputs: Pair.apply(kernel, *inputs), plain, [x, residual, weight, bias])
    return result, error(*of_bias)


def mask_of_rows(fused: Any, rows: int, dim: int, drop: Any, device: str) -> Tensor:
    """Returns the dropout factors: of equal inputs the kept ones are above their row's mean."""
    ones, zeros = torch.ones(rows, dim, device=device), torch.zeros(rows, dim, device=device)
    out, _ = fused.rows.add_norm(ones, zeros, ones[0], zeros[0], EPS, drop)
    if not drop.p:
        return torch.ones_like(out, dtype=torch.float64)
    all_stay = out.amax(1, keepdim=True) - out.amin(1, keepdim=True) < 0.1
    return ((out > 0) | all_stay).double() / (1 - drop.p)


def gelu(fused: Any, rows: int, width: int, dtype: torch.dtype, device: str = "cpu") -> tuple[Difference, float]:
    """Compares x; returns also the error of the gradient of a bias in it."""
    of_bias: list[Tensor] = []

    def kernel(x: Tensor) -> tuple[Tensor, Back]:
        def back(grad: Tensor) -> Sequence[Tensor]:
            partials = fused.rows.new_partials(rows, width + 3, x)[:, 3:]
            gradient = fused.rows.gelu_backward(grad, x, partials)
            of_bias.append(partials.sum(0))
            return [gradient]

        return fused.rows.gelu(x), back

    def plain(x: Tensor) -> Tensor:
        x = x * 1
        x.register_hook(lambda grad: of_bias.append(grad.sum(0)))
        return F.gelu(x)

    x = (2 * random(rows, width, seed=1, device=device)).to(dtype)
    return difference(lambda x: Pair.apply(kernel, x), plain, [x]), error(*of_bias)


def embedding(
    fused: Any, batch: Tokens, dim: int, dtype: torch.dtype, device: str = "cpu", dropout: float = 0.0
) -> Difference:
    """Compares both tables, weight and bias."""
    tables = [random(size, dim, seed=size, device=device).float() for size in (40, 70)]
    weight, bias = (random(dim, seed=seed, device=device).float() for seed in (3, 4))
    words = fused.embedding.token_ids(batch)

    def kernel(*parameters: Tensor) -> Tensor:
        torch.manual_seed(7)
        return fused.embedding.embed(batch, *parameters, EPS, dropout, dtype)

    torch.manual_seed(7)
    rows = len(words.ids)
    kept = mask_of_rows(fused, rows, dim, fused.rows.Drop.seeded([dropout], weight)[0], device)
    positions = torch.arange(rows, device=device) % words.length if words.positions is None else words.positions

    def plain(words_table: Tensor, position_vectors: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x = F.embedding(words.ids, words_table, padding_idx=0) + F.embedding(positions, position_vectors)
        return F.layer_norm(x, (dim,), weight, bias, EPS) * kept

    return difference(kernel, plain, [*tables, weight, bias])


def sum_by_id(fused: Any, tokens: int, count: int, dim: int, padding: int, device: str = "cpu") -> float:
    """Returns the error of the sums by random ids, half of which are equal; checks that the sums are deterministic."""
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(count, (tokens,), generator=generator, dtype=torch.int32)
    ids[::2] = 3
    grad, ids = random(tokens, dim, seed=6, device=device).float(), ids.to(device)
    sums, again = (fused.rows.sum_by_id(grad, ids, grad.new_full((count, dim), torch.nan), padding) for _ in range(2))
    assert torch.equal(sums, again)
    expected = torch.zeros(count, dim, dtype=torch.float64, device=device).index_add(0, ids, grad.double())
    if padding >= 0:
        expected[padding] = 0
    return error(sums, expected)


def attention(
    fused: Any, batch: Tokens, heads: int, head: int, dtype: torch.dtype, device: str = "cpu",
    dropout: float = 0.0, first_only: bool = False, far: float = 0.0,
) -> Difference:  # fmt: skip
    """Compares queries, keys, values and biases in them, whose gradient must have equal bits in each call.

    `far` is how far all scores are below 0.
    """
    layout, drop = Layout.of(batch), seeded(fused, dropout, device)
    options = fused.attention.AttentionOptions(layout.sentences, heads, drop, first_only)
    tokens, dim = batch.ids.numel(), heads * head
    queries = layout.sentences.count if first_only else tokens
    q, kv = (
        random(rows, width, seed=rows + width, device=device).to(dtype)
        for rows, width in ((queries, dim), (tokens, 2 * dim))
    )
    if far:
        q[:, ::head], kv[:, :dim:head] = far**0.5, -((far * head) ** 0.5)

    def kernel(q: Tensor, kv: Tensor, _: Tensor) -> tuple[Tensor, Back]:
        k, v = kv.chunk(2, 1)
        numbers = fused.attention.numbers_of(options, k)
        out, logs = fused.attention.attend(q, k, v, options, numbers)

        def back(grad: Tensor) -> Sequence[Tensor]:
            grads = torch.full_like(q, torch.nan), torch.full_like(kv, torch.nan)
            parts = grads[0], *grads[1].chunk(2, 1)
            torch.use_deterministic_algorithms(True)  # fills new memory with NaNs
            partials, again = (
                fused.attention.attend_backward(grad, q, k, v, out, logs, parts, options, numbers) for _ in range(2)
            )
            torch.use_deterministic_algorithms(False)
            assert torch.equal(partials, again)
            return *grads, partials.sum(0)

        return out, back

    kept = mask_of_attention(fused, options, layout, head, device)
    rows_of = rows_of_sentences(layout)

    def plain(q: Tensor, kv: Tensor, bias: Tensor) -> Tensor:
        q, kv = q + bias[:dim], kv + bias[dim:]
        out = torch.zeros_like(q)
        for number, (rows, keys) in enumerate(rows_of):
            mine = slice(number, number + 1) if first_only else rows
            k, v = (x.unflatten(1, (heads, head)).transpose(0, 1) for x in kv[keys].chunk(2, 1))
            score = q[mine].unflatten(1, (heads, head)).transpose(0, 1) @ k.transpose(1, 2) / head**0.5
            context = (score.softmax(2) * kept[number]) @ v
            out[mine] = context.transpose(0, 1).flatten(1)
        return out

    bias = torch.zeros(3 * dim, device=device)
    return difference(lambda *inputs: Pair.apply(kernel, *inputs), plain, [q, kv, bias])


def sum_partials(fused: Any, shapes: Sequence[tuple[int, int]], device: str = "cpu") -> float:
    """Returns the error of the sums of two tensors of these shapes."""
    parts = [random(*shape, seed=shape[0], device=device) for shape in shapes]
    return error(fused.rows.sum_partials(*(x.float() for x in parts)), torch.cat([x.sum(0) for x in parts]))


def rows_of_sentences(layout: Layout) -> list[tuple[slice, slice]]:
    """Returns the rows and the keys of each sentence."""
    bounds, count, longest, is_padded = layout.sentences
    ends = bounds.tolist()
    if is_padded:
        return [
            (slice(s * longest, (s + 1) * longest), slice(s * longest, s * longest + ends[s])) for s in range(count)
        ]
    return [(slice(*span), slice(*span)) for span in pairwise(ends)]


def mask_of_attention(fused: Any, options: Any, layout: Layout, head: int, device: str) -> list[Tensor]:
    """Returns the dropout factors of each sentence's weights, [heads, queries, keys].

    If all scores are equal and a value is 1 for one key only, the output is that key's weight.
    """
    rows_of, heads, dropout = rows_of_sentences(layout), options.num_heads, options.drop.p
    tokens = rows_of[-1][0].stop if layout.sentences.padded else len(layout.batch.ids)
    queries = len(rows_of) if options.first_only else tokens
    masks = [torch.ones((), dtype=torch.float64, device=device) for _ in rows_of]
    for begin in range(0, layout.sentences.longest if dropout else 0, head):
        q, v = (torch.zeros(rows, heads, head, device=device) for rows in (queries, tokens))
        shown = [list(range(keys.start + begin, min(keys.start + begin + head, keys.stop))) for _, keys in rows_of]
        for here in shown:
            v[here, :, list(range(len(here)))] = 1
        numbers = fused.attention.numbers_of(options, v.flatten(1))
        out, _ = fused.attention.attend(q.flatten(1), torch.zeros_like(v).flatten(1), v.flatten(1), options, numbers)
        out = out.unflatten(1, (heads, head)).transpose(0, 1)
        for number, (rows, _) in enumerate(rows_of):
            mine = slice(number, number + 1) if options.first_only else rows
            part = (out[:, mine, : len(shown[number])] > 0).double() / (1 - dropout)
            masks[number] = torch.cat([masks[number], part], 2) if begin else part
    return masks


def layer(
    fused: Any, batch: Tokens, sizes: Sizes, dtype: torch.dtype, device: str = "cpu", first_only: bool = False
) -> dict[str, float]:
    """Returns the errors of a layer's output and of the gradients of its input and its parameters, by name.

    The gradient of the keys' bias is only rounding and is left out. Without `fused` it tests plain torch in autocast.
    """
    block = Block(sizes, Dropout(0.0, 0.0, 0.0)).to(device)
    block.apply(randomise_block)
    layout = Layout.of(batch)
    x = random(batch.ids.numel(), sizes.dim, seed=11, device=device).to(dtype)
    names = [name for name, _ in block.named_parameters()]
    parameters = [parameter.detach().to(dtype).float() for parameter in block.parameters()]
    module, exact = block, deepcopy(block).double()

    # Rows after the last sentence differ: in the kernels they attend to nothing.
    end = int(batch.starts[-1]) if isinstance(batch, PackedTokens) else len(x)
    is_real = (torch.arange(batch.num_sentences if first_only else len(x), device=device) < end)[:, None]

    def kernel(x: Tensor, *parameters: Tensor) -> Tensor:
        if fused:
            return is_real * fused.layer.layer(x, layout, first_only, sizes.n_heads, EPS, (0.0, 0.0), parameters)
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            mine = dict(zip(names, parameters, strict=True))
            return is_real * functional_call(module, mine, (x, layout, first_only))

    def plain(x: Tensor, *parameters: Tensor) -> Tensor:
        return is_real * functional_call(exact, dict(zip(names, parameters, strict=True)), (x, layout, first_only))

    result = difference(kernel, plain, [x, *parameters])
    errors = dict(zip(["x", *names], result.gradients, strict=True))
    del errors["attention.k_lin.bias"]
    return {"output": result.output, **errors}


def head(
    fused: Any, rows: int, dim: int, labels: int, dtype: torch.dtype, device: str = "cpu", dropout: float = 0.0
) -> Difference:
    """Compares x, and weight and bias of both layers.

    What the ReLU sees is an odd multiple of 2^-6, exact in every dtype, so that rounding changes no sign.
    """
    drop = seeded(fused, dropout, device)
    x, weight = (random(*shape, seed=shape[0], device=device).round() for shape in ((rows, dim), (dim, dim)))
    bias = (random(dim, seed=3, device=device) > 0) / 32 - 1 / 64
    last, last_bias = (random(*shape, seed=4, device=device) for shape in ((labels, dim), (labels,)))
    parameters = [tensor.to(dtype).float() for tensor in (weight, bias, last, last_bias)]
    kept = mask_of_head(fused, rows, dim, drop, device)

    def plain(x: Tensor, weight: Tensor, bias: Tensor, last: Tensor, last_bias: Tensor) -> Tensor:
        return F.linear(F.relu(F.linear(x, weight, bias)) * kept, last, last_bias)

    return difference(lambda x, *rest: fused.head.head(x, drop, *rest), plain, [(x / 32).to(dtype), *parameters])


def mask_of_head(fused: Any, rows: int, dim: int, drop: Any, device: str) -> Tensor:
    """Returns the dropout factors: the logits of ones, where each label reads a column."""
    ones, zeros, columns = torch.ones(rows, dim, device=device), torch.zeros(16, device=device), torch.eye(dim)
    readers = F.pad(columns, (0, 0, 0, -dim % 16)).to(device).split(16)
    return torch.cat([fused.head.logits(ones, reader, zeros, drop) for reader in readers], 1)[:, :dim].double()


def randomise_block(module: nn.Module) -> None:
    """Sets large random weights, so that every part matters."""
    if isinstance(module, Block):
        randomise(module, 0)
