"""DistilBERT's fused kernels in Triton's interpreter; test_gpu.py runs them at full size."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from src.gpu import triton_helpers
from src.gpu.triton_helpers import launch
from src.models.distilbert import DistilBert, Sizes, fast
from src.models.distilbert.fast.dropout_triton import column_numbers, is_kept, row_numbers
from src.models.distilbert.layout import Layout, Tokens
from src.models.distilbert.network import EPS
from tests.support import ROOT
from tests.support.distilbert_kernels import (
    attention,
    embedding,
    gelu,
    layer,
    mask_of_attention,
    norm,
    seeded,
    sentences,
    sum_by_id,
    sum_partials,
)
from tests.support.hugging_face import SIZES, distilbert, packed, random_sentences
from tests.support.kernel_differences import error, random

DTYPES = [
    (torch.float32, 5e-6),
    pytest.param(torch.float16, 3e-3, marks=pytest.mark.slow),
    pytest.param(torch.bfloat16, 2e-2, marks=pytest.mark.slow),
]
fused: Any = fast
SMALL = Sizes(dim=24, n_heads=3, hidden_dim=40)


@pytest.fixture
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets fast modules use the kernels, which the interpreter executes."""
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})
    yield


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize(("rows", "dim"), [(21, 24), (3, 64), (35, 600)])
def test_norm_agrees_with_float64(rows: int, dim: int, dropout: float, dtype: torch.dtype, tolerance: float) -> None:
    difference, of_bias = norm(fused, rows, dim, dtype, dropout=dropout)
    assert difference.largest < tolerance and of_bias < tolerance, (difference, of_bias)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_gelu_agrees_with_float64(dtype: torch.dtype, tolerance: float) -> None:
    difference, of_bias = gelu(fused, 21, 300, dtype)
    assert difference.largest < tolerance and of_bias < tolerance, (difference, of_bias)


def test_programs_with_many_rows_agree_with_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused.rows, "PROGRAMS", 2)
    assert fused.rows.embed_backward_block(35, 2) < fused.rows.embed_backward_block(16, 2)
    for difference, of_bias in (norm(fused, 35, 600, torch.float32), gelu(fused, 35, 300, torch.float32)):
        assert difference.largest < 5e-6 and of_bias < 5e-6, (difference, of_bias)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("padded_to", [7, None])
def test_embedding_agrees_with_float64(
    padded_to: int | None, dropout: float, dtype: torch.dtype, tolerance: float
) -> None:
    difference = embedding(fused, sentences([5, 3, 7], padded_to, padding=4), 24, dtype, dropout=dropout)
    assert difference.largest < tolerance, difference


@pytest.mark.parametrize("most_compared", [1000, 10])
@pytest.mark.parametrize(("tokens", "count", "padding"), [(30, 40, 0), (30, 9, 3), (150, 40, -1)])
def test_sum_by_id_agrees_with_float64(
    tokens: int, count: int, padding: int, most_compared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ids sorted by the kernel and by torch, and of more rows than a block."""
    monkeypatch.setattr(fused.rows, "MOST_COMPARED", most_compared)
    assert sum_by_id(fused, tokens, count, 300, padding) < 1e-6


@pytest.mark.parametrize("window", [4, 8])
def test_sums_of_ids_with_more_rows_than_a_window_agree_with_float64(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids whose rows fill a block, a window or two but for one, exactly, and by one more; the last one ends the ids."""
    monkeypatch.setattr(fused.rows, "SUM_BY_ID", {"WIDTH": 16, "BLOCK": 4, "WINDOW": window, "num_warps": 1})
    counts = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 18, 1, 17]
    ids = torch.arange(len(counts), dtype=torch.int32).repeat_interleave(torch.tensor(counts))
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))]
    grad = random(len(ids), 20, seed=1).float()
    sums = fused.rows.sum_by_id(grad, ids, grad.new_full((len(counts), 20), torch.nan), -1)
    expected = torch.zeros(len(counts), 20, dtype=torch.float64).index_add(0, ids, grad.double())
    assert error(sums, expected) < 1e-6


def test_sorted_ids_are_those_of_a_stable_sort() -> None:
    ids = torch.randint(9, (1100,), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    for mine, expected in zip(fused.rows.sorted_ids(ids), torch.sort(ids, stable=True), strict=True):
        assert torch.equal(mine, expected) and mine.dtype == expected.dtype


@pytest.mark.parametrize("shapes", [[(300, 40), (1, 70)], [(8, 64), (513, 33)]])
def test_sums_of_partials_agree_with_float64(shapes: list[tuple[int, int]]) -> None:
    assert sum_partials(fused, shapes) < 1e-6


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize(("lengths", "padded_to", "padding"), [([18, 3], None, 35), ([5, 18], 19, 0)])
def test_attention_agrees_with_float64(
    lengths: list[int], padded_to: int | None, padding: int, first_only: bool, dtype: torch.dtype, tolerance: float
) -> None:
    """Sentences shorter and longer than a tile of 16, and more padding than sentences."""
    batch = sentences(lengths, padded_to, padding)
    difference = attention(fused, batch, 2, 10, dtype, dropout=0.3, first_only=first_only)
    assert difference.largest < tolerance, difference


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize(("lengths", "padded_to"), [([16, 3, 17], None), ([16, 3], 16)])
def test_attention_in_one_tile_agrees_with_float64(lengths: list[int], padded_to: int | None, first_only: bool) -> None:
    """Its program of keys has the gradient of its queries as well."""
    batch = sentences(lengths, padded_to, 5)
    difference = attention(fused, batch, 2, 10, torch.float16, dropout=0.3, first_only=first_only)
    assert difference.largest < 3e-3, difference


@pytest.mark.parametrize("first_only", [False, True])
def test_attention_of_more_sentences_than_are_searched_at_once_agrees_with_float64(first_only: bool) -> None:
    """The programs of packed tiles search their sentence among 128 at a time; some sentences end where a tile does."""
    batch = sentences([2, 1, 14, *[3] * 129, 17, 15, 1], None, 5)
    difference = attention(fused, batch, 1, 16, torch.float16, first_only=first_only)
    assert difference.largest < 3e-3, difference


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # in rows without keys, which get zeros
@pytest.mark.parametrize("padded_to", [19, None])
def test_large_negative_scores_give_finite_gradients(padded_to: int | None) -> None:
    """Also if a tile has keys outside of the sentence, whose scores are 0.

    Float32 resolves a score of -400 to 3e-5, and cancellation costs up to three digits more on some processors. The
    tolerance allows for that; infinite or wrong gradients are far beyond it.
    """
    difference = attention(fused, sentences([5, 18], padded_to, 3), 2, 10, torch.float32, dropout=0.3, far=400.0)
    assert difference.largest < 1e-2, difference


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.slow
def test_dense_attention_agrees_with_float64(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dropout masks equal those of the tiled kernel."""
    batch, masks = sentences([5, 18, 19], 19), []
    for least in (100, 10):
        monkeypatch.setitem(fused.attention.DENSE, "ieee", least)
        layout = Layout.of(batch)
        options = fused.attention.AttentionOptions(layout.sentences, 2, seeded(fused, dropout, "cpu"))
        masks.append(mask_of_attention(fused, options, layout, 10, "cpu"))
    assert fused.attention.is_dense(options, torch.float32)
    assert all(torch.equal(*pair) for pair in zip(*masks, strict=True))
    difference = attention(fused, batch, 2, 10, torch.float32, dropout=dropout)
    assert difference.largest < 5e-6, difference


@pytest.mark.parametrize("padded_to", [19, None])
def test_programs_of_small_tiles_hash_the_masks_that_others_load(
    padded_to: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, small = Layout.of(sentences([5, 18], padded_to, 3)), fused.attention.TILES["half"][0][1]
    options, masks = fused.attention.AttentionOptions(layout.sentences, 2, seeded(fused, 0.3, "cpu")), []
    for queries in (16, 32):  # of the backward pass, for which `numbers` are kept
        tiles = small, small._replace(queries=queries)
        monkeypatch.setattr(fused.attention, "tiles_of", lambda *_, tiles=tiles: tiles)
        assert (fused.attention.numbers_of(options, torch.zeros(38, 20)) is None) == (queries == 16)
        masks.append(mask_of_attention(fused, options, layout, 10, "cpu"))
    assert all(torch.equal(*pair) for pair in zip(*masks, strict=True))


def test_attention_of_long_sentences_agrees_with_float64() -> None:
    difference = attention(fused, sentences([130, 70], None, 3), 1, 20, torch.float32)
    assert difference.largest < 1e-5, difference


WITHOUT_DROPOUT = """
import json
from pathlib import Path
from src.gpu.precompile import compile_kernel

for entry in json.loads(Path("src/models/distilbert/fast/kernels.json").read_text("utf-8")):
    if ":attend" in entry["kernel"] and "amp" in entry["precisions"]:
        entry["constants"] |= {"THRESHOLD": 0, "SCALE": 1.0}
        compile_kernel(entry | {"arguments": entry["arguments"] | {"numbers": None}})
"""


@pytest.mark.slow
def test_attention_without_dropout_can_be_compiled() -> None:
    """The interpreter executes what the compiler refuses."""
    command, environment = [sys.executable, "-c", WITHOUT_DROPOUT], {**os.environ, "TRITON_INTERPRET": "0"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("padded_to", [11, None])
def test_layer_agrees_with_float64(
    padded_to: int | None, first_only: bool, dtype: torch.dtype, tolerance: float
) -> None:
    errors = layer(fused, sentences([5, 3, 9], padded_to, 2), SMALL, dtype, first_only=first_only)
    assert errors["output"] < 3 * tolerance and max(errors.values()) < 10 * tolerance, errors


@pytest.mark.slow
def test_dropout_masks_have_their_probability_and_are_independent() -> None:
    """Within 5 standard deviations, also for pairs of neighbouring rows and columns and of seeds."""
    rows, dim, dropout = 64, 200, 0.1
    ones, zeros = torch.ones(rows, dim), torch.zeros(rows, dim)

    def dropped(seed: int) -> Tensor:
        drop = seeded(fused, dropout, "cpu", seed)
        return (fused.rows.add_norm(ones, zeros, ones[0], zeros[0], EPS, drop)[0] < 0).double()

    first, second = dropped(1), dropped(2)
    assert torch.equal(first, dropped(1))

    def assert_frequency(mask: Tensor, expected: float) -> None:
        deviation = (expected * (1 - expected) / mask.numel()) ** 0.5
        assert abs(float(mask.mean()) - expected) < 5 * deviation

    assert_frequency(first, dropout)
    for a, b in (
        (first, second),
        (first[1:], first[:-1]),
        (first[:, 1:], first[:, :-1]),
        (first[:, 100:], first[:, :100]),
    ):
        assert_frequency(a * b, dropout**2)
    assert_frequency(first[:4].flatten(), dropout)
    of_columns, of_rows = first.sum(0), first.sum(1)
    for counts, of in ((of_columns, rows), (of_rows, dim)):
        assert float(counts.var()) == pytest.approx(of * dropout * (1 - dropout), rel=0.6)


@triton.jit
def kept(out, first, second, SIZE: tl.constexpr, THRESHOLD: tl.constexpr):
    first, second, place = first.to(tl.uint32), second.to(tl.uint32), tl.arange(0, SIZE)
    of_row, of_column = row_numbers(place, first, second), column_numbers(place, first, second)
    keep = is_kept(of_row[:, None], of_column[None, :], THRESHOLD)
    tl.store(out + place[:, None] * SIZE + place[None, :], 2 * keep.to(tl.int32) - 1)


@pytest.mark.parametrize("dropout", [2e-4, 0.1, 0.45, 0.498, 0.5, 0.6, 0.9, 0.995, 0.999])
def test_any_share_is_dropped(dropout: float) -> None:
    signs, count = torch.zeros(16, 256, 256, dtype=torch.int32), 16 * 256**2
    threshold = fused.rows.Drop(dropout).constants["THRESHOLD"]
    for key, out in enumerate(signs):
        launch(kept, (1,), out, 9 * key, 77 * key + 1, SIZE=256, THRESHOLD=threshold)
    deviation = (dropout * (1 - dropout) * count) ** 0.5
    assert abs(int((signs < 0).sum()) - dropout * count) < 5 * deviation


def test_mask_elements_are_pairwise_independent() -> None:
    """Within 5 standard deviations: near and far rows and columns, corners of rectangles, neighbouring keys."""
    keys, size = (
        [(7, 1234567890), (8, 1234567890), (7, 1234567891), (0, 0), *((k * k, 3 * k) for k in range(9, 21))],
        128,
    )
    signs = torch.zeros(len(keys), size, size, dtype=torch.int32)
    for out, (first, second) in zip(signs, keys, strict=True):
        launch(kept, (1,), out, first, second, SIZE=size, THRESHOLD=1 << 31)
    pairs = [(signs[:, down:], signs[:, : size - down]) for down in (1, 2, 3, 16, 64)]
    pairs += [(signs[:, :, across:], signs[:, :, : size - across]) for across in (1, 2, 3, 16, 64)]
    pairs += [(signs[:, 1:, 1:], signs[:, :-1, :-1]), (signs[:, 1:, :-1], signs[:, :-1, 1:])]
    pairs += [(signs[:, 1:, 1:] * signs[:, :-1, :-1], signs[:, 1:, :-1] * signs[:, :-1, 1:])]
    pairs += [(signs[:1], signs[other : other + 1]) for other in (1, 2)]
    pairs += [(signs[:1, 1:], signs[other : other + 1, :-1]) for other in (1, 2)]
    for a, b in pairs:
        product = (a * b).double()
        assert abs(float(product.mean())) < 5 / product.numel() ** 0.5
    assert len(signs[0].unique(dim=0)) == len(signs[0].unique(dim=1).t()) == size


def test_each_head_and_sentence_has_its_own_attention_dropout() -> None:
    batch, dropout = sentences([40, 40], None), 0.25
    layout = Layout.of(batch)
    options = fused.attention.AttentionOptions(layout.sentences, 2, seeded(fused, dropout, "cpu"))
    masks = torch.cat([mask == 0 for mask in mask_of_attention(fused, options, layout, 20, "cpu")]).double()
    for mask in masks:
        assert float(mask.mean()) == pytest.approx(dropout, abs=5 * (dropout * (1 - dropout) / 1600) ** 0.5)
        assert [float((mask * other).mean()) < 0.1 for other in masks].count(False) == 1  # itself


def outcome(network: DistilBert, batch: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the logits, and the gradients of the loss."""
    logits = network(batch)
    F.cross_entropy(logits, batch.labels).backward()
    return logits.detach(), {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_network_with_kernels_agrees_with_plain_torch(is_packed: bool) -> None:
    """In float64, which the kernels do not support, its modules are the plain ones."""
    batch: Tokens = random_sentences([5, 9, 3], 10)
    batch = packed(batch, 5, 9) if is_packed else batch
    outcomes: list[tuple[Tensor, dict[str, Tensor]]] = []
    for dtype in (torch.float64, torch.float32):
        network = fast.accelerate(DistilBert(SIZES).to(dtype).eval())
        network.load_state_dict(distilbert().state_dict())
        outcomes.append(outcome(network, batch))
    (logits, gradients), (mine, my_gradients) = outcomes
    torch.testing.assert_close(mine.double(), logits, rtol=1e-4, atol=1e-5)
    assert gradients.keys() == my_gradients.keys()
    for name, gradient in gradients.items():
        atol = 1e-4 * float(gradient.abs().max()) + 1e-6
        torch.testing.assert_close(my_gradients[name].double(), gradient, rtol=1e-3, atol=atol, msg=name)


@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize("part", ["dropout", "attention_dropout", "head_dropout", None])
@pytest.mark.slow
def test_each_dropout_of_a_network_with_kernels_works(part: str | None) -> None:
    """It follows the generator, is off in evaluation, and is off with probability 0."""
    shares: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0} | (
        {part: 0.5} if part else {}
    )
    batch = packed(random_sentences([5, 3], 6), 1, 5)
    network = fast.accelerate(DistilBert(Sizes(**{**vars(SIZES), "n_layers": 1}), **shares))
    logits = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        logits.append(network(batch))
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2]) is (part is None)
    network.eval()
    assert torch.equal(network(batch), network(batch))


@pytest.mark.usefixtures("on_kernels")
@pytest.mark.slow
def test_kernels_work_in_the_autocast_dtype() -> None:
    """Hidden states have its dtype, gradients of parameters the parameters' dtype."""
    batch = packed(random_sentences([5, 3], 6), 1, 5)
    network = fast.accelerate(DistilBert(Sizes(**{**vars(SIZES), "n_layers": 1})))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = network.distilbert(batch, Layout.of(batch))
        logits = network(batch)
    assert hidden.dtype == torch.bfloat16 and logits.dtype == torch.float32
    (hidden.float().sum() + logits.sum()).backward()
    assert {p.grad.dtype for p in network.parameters() if p.grad is not None} == {torch.float32}


@pytest.mark.usefixtures("on_kernels")
def test_sizes_beyond_the_kernels_limits_are_plain() -> None:
    assert fused.rows.takes("layer", torch.zeros(2, 2048)) and not fused.rows.takes("layer", torch.zeros(2, 4096))
    assert fused.attention.supported(128) and not fused.attention.supported(256)
