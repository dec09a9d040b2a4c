"""DistilBERT's fused kernels in Triton's interpreter; tests/models/distilbert/test_gpu.py has them at full size."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from src.gpu.triton_helpers import launch
from src.models.distilbert import DistilBert, Sizes
from src.models.distilbert.kernels import dispatch, fused
from src.models.distilbert.kernels.fused.dropout_triton import column_numbers, is_kept, row_numbers
from src.models.distilbert.layers import EPS
from src.models.distilbert.layout import Layout, Tokens
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
)
from tests.support.hugging_face import SIZES, distilbert, packed, random_sentences

DTYPES = [(torch.float32, 5e-6), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)]
SMALL = Sizes(dim=24, n_heads=3, hidden_dim=40)


@pytest.fixture
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs networks here on the kernels, which the interpreter executes."""
    monkeypatch.setattr(dispatch, "can_take", lambda tensor: tensor.dtype == torch.float32)
    yield


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("share", [0.0, 0.25])
@pytest.mark.parametrize(("rows", "dim"), [(21, 24), (3, 64)])
def test_norm(rows: int, dim: int, share: float, dtype: torch.dtype, tolerance: float) -> None:
    found, of_bias = norm(fused, rows, dim, dtype, share=share)
    assert found.largest < tolerance and of_bias < tolerance, (found, of_bias)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_gelu(dtype: torch.dtype, tolerance: float) -> None:
    found, of_bias = gelu(fused, 21, 300, dtype)
    assert found.largest < tolerance and of_bias < tolerance, (found, of_bias)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("share", [0.0, 0.25])
@pytest.mark.parametrize("padded_to", [7, None])
def test_embedding(padded_to: int | None, share: float, dtype: torch.dtype, tolerance: float) -> None:
    found = embedding(fused, sentences([5, 3, 7], padded_to, padding=4), 24, dtype, share=share)
    assert found.largest < tolerance, found


@pytest.mark.parametrize(("count", "padding"), [(40, 0), (9, 3), (40, -1)])
def test_sum_by_id(count: int, padding: int) -> None:
    assert sum_by_id(fused, 30, count, 300, padding) < 1e-6


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("first_alone", [False, True])
@pytest.mark.parametrize(("lengths", "padded_to", "padding"), [([18, 3], None, 35), ([5, 18], 19, 0)])
def test_attention(
    lengths: list[int], padded_to: int | None, padding: int, first_alone: bool, dtype: torch.dtype, tolerance: float
) -> None:
    """Over tiles of 16: sentences of one, of several and of a part of one, and more padding than sentences."""
    batch = sentences(lengths, padded_to, padding)
    found = attention(fused, batch, 2, 10, dtype, share=0.3, first_alone=first_alone)
    assert found.largest < tolerance, found


@pytest.mark.parametrize("padded_to", [19, None])
def test_scores_far_from_zero_make_no_infinite_gradient(padded_to: int | None) -> None:
    """Of keys that a tile holds beside the sentence's own: theirs are 0.

    Float32 holds a score of -400 to 3e-5 and the products around it cancel, which costs a processor or another up to
    three digits more: an infinite or wrong gradient is far beyond what is let through.
    """
    found = attention(fused, sentences([5, 18], padded_to, 3), 2, 10, torch.float32, share=0.3, far=400.0)
    assert found.largest < 1e-2, found


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_attention_with_scores_in_memory(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same function, and the same dropout."""
    batch, masks = sentences([5, 18, 19], 19), []
    for least in (100, 10):
        monkeypatch.setitem(fused.attention.DENSE, "ieee", least)
        layout = Layout.of(batch)
        asked = fused.attention.Attention(layout.sentences, 2, seeded(fused, share, "cpu"))
        masks.append(mask_of_attention(fused, asked, layout, 10, "cpu"))
    assert fused.attention.is_dense(asked, torch.float32)
    assert all(torch.equal(*pair) for pair in zip(*masks, strict=True))
    found = attention(fused, batch, 2, 10, torch.float32, share=share)
    assert found.largest < 5e-6, found


def test_attention_of_long_sentences_takes_other_tiles() -> None:
    found = attention(fused, sentences([130, 70], None, 3), 1, 20, torch.float32)
    assert found.largest < 1e-5, found


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("first_alone", [False, True])
@pytest.mark.parametrize("padded_to", [11, None])
def test_layer(padded_to: int | None, first_alone: bool, dtype: torch.dtype, tolerance: float) -> None:
    errors = layer(fused, sentences([5, 3, 9], padded_to, 2), SMALL, dtype, first_alone=first_alone)
    assert errors["output"] < 3 * tolerance and max(errors.values()) < 10 * tolerance, errors


@pytest.mark.parametrize("shape", [(70, 5), (64, 128), (3, 200)])
def test_transposed(shape: tuple[int, int]) -> None:
    part = torch.arange(shape[0] * (shape[1] + 3.0)).view(shape[0], -1)[:, 3:]
    assert torch.equal(fused.rows.transposed(part), part.t())


def test_dropout_drops_its_share_of_numbers_that_do_not_depend_on_each_other() -> None:
    """Within 5 deviations: as many as told, also in neighbouring rows and columns at once, and with other seeds."""
    rows, dim, share = 64, 200, 0.1
    ones, zeros = torch.ones(rows, dim), torch.zeros(rows, dim)

    def dropped(seed: int) -> Tensor:
        drop = seeded(fused, share, "cpu", seed)
        return (fused.rows.add_norm(ones, zeros, ones[0], zeros[0], EPS, drop)[0] < 0).double()

    first, second = dropped(1), dropped(2)
    assert torch.equal(first, dropped(1))

    def assert_share(found: Tensor, expected: float) -> None:
        deviation = (expected * (1 - expected) / found.numel()) ** 0.5
        assert abs(float(found.mean()) - expected) < 5 * deviation

    assert_share(first, share)
    for a, b in (
        (first, second),
        (first[1:], first[:-1]),
        (first[:, 1:], first[:, :-1]),
        (first[:, 100:], first[:, :100]),
    ):
        assert_share(a * b, share**2)
    assert_share(first[:4].flatten(), share)
    of_columns, of_rows = first.sum(0), first.sum(1)
    for counts, of in ((of_columns, rows), (of_rows, dim)):
        assert float(counts.var()) == pytest.approx(of * share * (1 - share), rel=0.6)


@triton.jit
def kept(out, first, second, SIZE: tl.constexpr):
    first, second, place = first.to(tl.uint32), second.to(tl.uint32), tl.arange(0, SIZE)
    of_row, of_column = row_numbers(place, first, second), column_numbers(place, first, second)
    found = is_kept(of_row[:, None], of_column[None, :], 1 << 31)
    tl.store(out + place[:, None] * SIZE + place[None, :], 2 * found.to(tl.int32) - 1)


def test_numbers_of_places_are_as_good_as_independent() -> None:
    """Within 5 deviations: of rows and columns near and far, of a rectangle's corners, and of neighbouring keys."""
    keys, size = (
        [(7, 1234567890), (8, 1234567890), (7, 1234567891), (0, 0), *((k * k, 3 * k) for k in range(9, 21))],
        128,
    )
    signs = torch.zeros(len(keys), size, size, dtype=torch.int32)
    for each, (first, second) in zip(signs, keys, strict=True):
        launch(kept, (1,), each, first, second, SIZE=size)
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


def test_dropout_of_attention_is_another_one_for_each_head_and_sentence() -> None:
    batch, share = sentences([40, 40], None), 0.25
    layout = Layout.of(batch)
    asked = fused.attention.Attention(layout.sentences, 2, seeded(fused, share, "cpu"))
    masks = torch.cat([mask == 0 for mask in mask_of_attention(fused, asked, layout, 20, "cpu")]).double()
    for mask in masks:
        assert float(mask.mean()) == pytest.approx(share, abs=5 * (share * (1 - share) / 1600) ** 0.5)
        assert [float((mask * other).mean()) < 0.1 for other in masks].count(False) == 1  # itself


def outcome(network: DistilBert, batch: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and the gradients of the loss."""
    logits = network(batch)
    F.cross_entropy(logits, batch.labels).backward()
    return logits.detach(), {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_network_on_kernels_is_the_plain_one(is_packed: bool) -> None:
    """The plain one is in float64, which no kernel takes."""
    batch: Tokens = random_sentences([5, 9, 3], 10)
    batch = packed(batch, 5, 9) if is_packed else batch
    found: list[tuple[Tensor, dict[str, Tensor]]] = []
    for dtype in (torch.float64, torch.float32):
        network = DistilBert(SIZES).to(dtype).eval()
        network.load_state_dict(distilbert().state_dict())
        found.append(outcome(network, batch))
    (logits, gradients), (mine, my_gradients) = found
    torch.testing.assert_close(mine.double(), logits, rtol=1e-4, atol=1e-5)
    assert gradients.keys() == my_gradients.keys()
    for name, gradient in gradients.items():
        atol = 1e-4 * float(gradient.abs().max()) + 1e-6
        torch.testing.assert_close(my_gradients[name].double(), gradient, rtol=1e-3, atol=atol, msg=name)


@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize("part", ["dropout", "attention_dropout", None])
def test_each_dropout_of_a_network_on_kernels(part: str | None) -> None:
    """Follows the generator, drops while training alone, and not at all where its share is 0."""
    shares: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0} | (
        {part: 0.5} if part else {}
    )
    batch = packed(random_sentences([5, 3], 6), 1, 5)
    network = DistilBert(Sizes(**{**vars(SIZES), "n_layers": 1}), **shares)
    logits = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        logits.append(network(batch))
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2]) is (part is None)
    network.eval()
    assert torch.equal(network(batch), network(batch))


@pytest.mark.usefixtures("on_kernels")
def test_autocast_is_what_the_kernels_work_in() -> None:
    """Hidden states are in its dtype, gradients of parameters in theirs."""
    batch = packed(random_sentences([5, 3], 6), 1, 5)
    network = DistilBert(Sizes(**{**vars(SIZES), "n_layers": 1}))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = network.distilbert(batch, Layout.of(batch))
        logits = network(batch)
    assert hidden.dtype == torch.bfloat16 and logits.dtype == torch.float32
    hidden.float().sum().backward()
    grads = {p.grad.dtype for p in network.distilbert.parameters() if p.grad is not None}
    assert grads == {torch.float32}


def test_what_kernels_cannot_hold_is_refused() -> None:
    assert not fused.rows.supported(4096)
    assert not fused.layer.supported(768, 3)
    assert dispatch.fused_for(torch.zeros(3, 24)) is None
