"""Times DistilBERT's kernels on an NVIDIA GPU: `python -m benchmarks.distilbert_kernels [padded|packed|layers] ...`.

`padded`: 96 sentences padded to 512 tokens, once without padding and once of SST-2's lengths; `packed`: 96 concatenated
sentences of SST-2's lengths (13 tokens on average, at most 66); `layers`: a whole layer on both. Dropout is 0.1.
`backward` is the kernel itself; for a layer, forward and backward together minus forward. GB/s use the fewest bytes
that a kernel must move; TFLOP/s count only keys that are real tokens.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from src.batches.tokens import PackedTokens, PaddedTokens
from src.measure.replay import device_ms
from src.models.distilbert import Sizes
from src.models.distilbert.fast import attention, embedding
from src.models.distilbert.fast import rows as kernels
from src.models.distilbert.layout import Layout, Sentences, Tokens
from src.models.distilbert.network import EPS, Block, Dropout

SENTENCES, LENGTH, LONGEST, MULTIPLE = 96, 512, 66, 32
SIZES = Sizes()
DIM, HEADS, WIDE = SIZES.dim, SIZES.n_heads, SIZES.hidden_dim
PRECISIONS = {"bf16": (torch.bfloat16, "high"), "TF32": (torch.float32, "high"), "fp32": (torch.float32, "highest")}


class Row(NamedTuple):
    """One line of the table; bytes and floating-point operations are those of forward and of backward."""

    name: str
    forward_ms: float
    backward_ms: float
    bytes: tuple[float, float] | None = None
    flops: tuple[float, float] | None = None


def main() -> None:
    """Prints one line for each kernel, precision and kind of batch."""
    chosen = sys.argv[1:] or ["padded", "packed", "layers"]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| kernel | numbers | tokens | forward ms | backward ms | GB/s | backward | TFLOP/s | backward |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, (dtype, matmul) in PRECISIONS.items():
        torch.set_float32_matmul_precision(matmul)
        for batch in batches(chosen):
            rows = [*rows_of(batch, dtype), *attentions(batch, dtype)] if set(chosen) & {"padded", "packed"} else []
            rows += [layer_row(batch, dtype)] if "layers" in chosen else []
            for row in rows:
                print(f"| {' | '.join(cells(row, name, batch.ids.numel()))} |", flush=True)


def lengths_of_sst2() -> Tensor:
    """96 random lengths like those of SST-2's training set: 13 on average, at most 66."""
    generator = torch.Generator().manual_seed(0)
    drawn = 4 + torch.empty(SENTENCES).exponential_(1 / 9, generator=generator)
    return drawn.int().clamp(max=LONGEST)


def batches(chosen: Iterable[str]) -> list[Tokens]:
    """Padded batches of long and of short sentences, and a packed batch."""
    short, labels = lengths_of_sst2(), torch.zeros(SENTENCES, dtype=torch.int64)
    tokens: list[Tokens] = []
    if "padded" in chosen or "layers" in chosen:
        for lengths in (torch.full_like(short, LENGTH), short):
            ids = torch.randint(1, SIZES.vocab_size, (SENTENCES, LENGTH), dtype=torch.int32)
            ids *= torch.arange(LENGTH) < lengths[:, None]
            tokens.append(PaddedTokens(ids.cuda(), lengths.cuda(), labels.cuda()))
    if "packed" in chosen or "layers" in chosen:
        real, missing = int(short.sum()), -int(short.sum()) % MULTIPLE
        positions = torch.cat([torch.arange(int(length)) for length in short] + [torch.zeros(missing)]).int()
        ids = torch.randint(1, SIZES.vocab_size, (real + missing,), dtype=torch.int32)
        ids[real:] = 0
        starts = torch.cat([torch.zeros(1), short.cumsum(0)]).int()
        tokens.append(PackedTokens(ids.cuda(), positions.cuda(), starts.cuda(), labels.cuda(), LONGEST))
    return tokens


def rows_of(batch: Tokens, dtype: torch.dtype) -> list[Row]:
    """Returns the memory-bound kernels."""
    rows, drop = batch.ids.numel(), kernels.Drop.seeded([0.1], batch.labels)[0]
    weight, bias = torch.ones(DIM, device="cuda"), torch.zeros(DIM, device="cuda")
    x, residual, grad = (torch.randn(rows, DIM, device="cuda", dtype=dtype) for _ in range(3))
    h, wide_grad = (torch.randn(rows, WIDE, device="cuda", dtype=dtype) for _ in range(2))
    partials = kernels.new_partials(rows, 3 * DIM + WIDE, x)
    of_norm, of_wide, of_qkv = partials[:, : 3 * DIM], partials[:, 3 * DIM :], x.new_zeros(768, 3 * DIM).float()
    _, statistics = kernels.add_norm(x, residual, weight, bias, EPS, drop)
    words = embedding.token_ids(batch)
    of_words, of_places = (torch.randn(size, DIM, device="cuda") for size in (SIZES.vocab_size, LENGTH))
    once, wide = x.numel() * x.itemsize, h.numel() * h.itemsize

    def norm(drop: Any) -> tuple[float, float]:
        return (
            device_ms(lambda: kernels.add_norm(x, residual, weight, bias, EPS, drop)),
            device_ms(lambda: kernels.add_norm_backward(grad, x, residual, weight, statistics, drop, of_norm)),
        )

    return [
        Row("add, norm", *norm(kernels.Drop()), bytes=(3 * once, 4 * once)),
        Row("dropout, add, norm", *norm(drop), bytes=(3 * once, 5 * once)),
        Row("GELU", device_ms(lambda: kernels.gelu(h)),
            device_ms(lambda: kernels.gelu_backward(wide_grad, h, of_wide)), bytes=(2 * wide, 3 * wide)),
        Row("embedding", device_ms(lambda: kernels.embed(words, of_words, of_places, weight, bias, EPS, drop, dtype)),
            device_ms(lambda: kernels.embed_backward(
                grad, words, of_words, of_places, weight, statistics, drop, of_norm[:, : 2 * DIM])),
            bytes=(once + rows * DIM * 4, once + 2 * rows * DIM * 4)),
        Row("sums of partials", 0.0, device_ms(lambda: kernels.sum_partials(partials, of_qkv)),
            bytes=(0, (partials.numel() + of_qkv.numel()) * 4)),
        Row("rows of words", device_ms(lambda: kernels.sum_by_id(
            x.float(), words.ids, torch.empty_like(of_words), 0)), 0.0),
    ]  # fmt: skip


def attentions(batch: Tokens, dtype: torch.dtype) -> list[Row]:
    """Attention of all tokens, and of first tokens only."""
    sentences, drop = Layout.of(batch).sentences, kernels.Drop.seeded([0.1], batch.labels)[0]
    q, k, v, out, grad = (torch.randn(batch.ids.numel(), DIM, device="cuda", dtype=dtype) for _ in range(5))
    rows = []
    for first in (False, True):
        options = attention.AttentionOptions(sentences, HEADS, drop, first)
        of_q, above = (q[: sentences.count], grad[: sentences.count]) if first else (q, grad)
        numbers = attention.numbers_of(options, k)
        _, logs = attention.attend(of_q, k, v, options, numbers)
        grads = torch.empty_like(of_q), torch.empty_like(k), torch.empty_like(v)
        forward = device_ms(lambda a=of_q, b=options: attention.attend(a, k, v, b, attention.numbers_of(b, k)))
        backward = device_ms(
            lambda a=above, b=of_q, c=logs, d=grads, e=options, f=numbers: attention.attend_backward(
                a, b, k, v, out[: len(b)], c, d, e, f)
        )  # fmt: skip
        work = 4 * DIM * pairs(sentences, first)
        rows.append(Row(f"attention{' of first tokens' * first}", forward, backward, flops=(work, 2.5 * work)))
    return rows


def pairs(sentences: Sentences, first: bool) -> int:
    """Returns the number of pairs of a query and a key."""
    keys = sentences.bounds.long() if sentences.padded else sentences.bounds.long().diff()
    queries = torch.full_like(keys, sentences.longest) if sentences.padded else keys
    return int((keys if first else keys * queries).sum())


def layer_row(batch: Tokens, dtype: torch.dtype) -> Row:
    """Returns a whole layer in training."""
    block = Block(SIZES, Dropout()).cuda()
    layout = Layout.of(batch)
    x = torch.randn(batch.ids.numel(), DIM, device="cuda", dtype=dtype, requires_grad=True)
    grad = torch.randn_like(x)

    def call() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            return block(x, layout)

    forward, both = train_ms(call, [x, *block.parameters()], grad)
    weights = 4 * DIM**2 + 2 * DIM * WIDE
    work = 2 * len(x) * weights + 4 * DIM * pairs(layout.sentences, False)
    return Row("layer", forward, both - forward, flops=(work, 2 * work))


def train_ms(call: Callable[[], Tensor], leaves: list[Tensor], grad: Tensor) -> tuple[float, float]:
    """Milliseconds of forward, and of forward and backward together."""
    with torch.no_grad():
        forward = device_ms(call)
    return forward, device_ms(lambda: torch.autograd.grad(call(), leaves, grad))


def cells(row: Row, numbers: str, tokens: int) -> list[str]:
    times = (row.forward_ms, row.backward_ms)
    shown = [f"{ms:.4f}" for ms in times]
    for work, unit in ((row.bytes, 1e6), (row.flops, 1e9)):
        shown += [
            f"{amount / ms / unit:.0f}" if ms and amount else ""
            for amount, ms in zip(work or (0, 0), times, strict=True)
        ]
    return [row.name, numbers, str(tokens), *shown]


if __name__ == "__main__":
    main()
