"""DistilBERT's fused kernels in Triton's interpreter; tests/gpu/test_distilbert_gpu.py has them at full size."""

from collections.abc import Iterator

import pytest
import torch
import triton
import triton.language as tl
from distilbert_kernels import attention, embedding, gelu, layer, mask_of_attention, norm, seeded, sentences
from hugging_face import SIZES, distilbert, packed, random_sentences
from torch import Tensor
from torch.nn import functional as F

from src.models.distilbert import DistilBert, Sizes
from src.models.distilbert.kernels import dispatch, fused
from src.models.distilbert.kernels.fused.dropout_triton import is_kept
from src.models.distilbert.layers import EPS
from src.models.distilbert.layout import Layout, Tokens
from src.models.kernels import launch

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


def test_attention_of_long_sentences_takes_other_tiles() -> None:
    found = attention(fused, sentences([130, 70], None, 3), 1, 20, torch.float32)
    assert found.largest < 1e-5, found


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("first_alone", [False, True])
@pytest.mark.parametrize("padded_to", [11, None])
def test_layer(padded_to: int | None, first_alone: bool, dtype: torch.dtype, tolerance: float) -> None:
    found, gradients = layer(fused, sentences([5, 3, 9], padded_to, 2), SMALL, dtype, first_alone=first_alone)
    gradients.pop("attention.k_lin.bias")
    assert found.output < 3 * tolerance and max(gradients.values()) < 10 * tolerance, (found.output, gradients)


def test_dropout_drops_its_share_of_numbers_that_do_not_depend_on_each_other() -> None:
    """Within 5 deviations: as many as told, also in neighbouring rows and columns at once, and with other seeds."""
    rows, dim, share = 160, 200, 0.1
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
def kept(out, first, second, COUNT: tl.constexpr):
    place = tl.arange(0, COUNT)
    tl.store(out + place, is_kept(first.to(tl.uint32), second.to(tl.uint32), place, 1 << 31))


def test_numbers_of_a_program_are_not_another_ones_shifted() -> None:
    """Which the first key alone would do."""
    masks = torch.zeros(3, 1024, dtype=torch.int32)
    for mask, keys in zip(masks, ((7, 1234567890), (8, 1234567890), (8, 987654321)), strict=True):
        launch(kept, (1,), mask, *keys, COUNT=1024)
    assert torch.equal(masks[0, 1:], masks[1, :-1])
    assert float((masks[0, 1:] == masks[2, :-1]).float().mean()) == pytest.approx(0.5, abs=0.08)


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
    shares = {"dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0} | ({part: 0.5} if part else {})
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
