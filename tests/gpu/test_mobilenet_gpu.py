"""MobileNetV1's kernels on a GPU against plain torch in float64, and whole training steps in a CUDA graph."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mobilenet_kernels import Shape, layers, network, plain_features
from tiny_mobilenet import tiny_mobilenet

from src.measure.clock import Clock
from src.models.mobilenet_v1 import MobileNetV1
from src.models.mobilenet_v1.kernels import dispatch
from src.run import build, fit, quieten, settled

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = "cuda"
PRECISIONS = [
    ("single", torch.float32, "highest", 5e-5),
    ("TF32", torch.float32, "high", 1e-2),
    ("half", torch.float16, "highest", 1e-2),
    ("bfloat16", torch.bfloat16, "highest", 8e-2),
]
# The published network's own shapes, narrow ones, and such as fit no block.
CASES = [
    ((3, 32, 112, 112), "1", 0),
    ((3, 64, 112, 112), "2", 0),
    ((5, 512, 14, 14), "1", 0),
    ((5, 512, 14, 14), "2", 0),
    ((3, 1024, 7, 7), "1", 0),
    ((7, 24, 9, 5), "1", 0),
    ((7, 24, 9, 5), "2", 0),
    ((3, 32, 112, 112), "p", 64),
    ((5, 512, 14, 14), "p", 512),
    ((64, 512, 7, 7), "p", 1024),
    ((64, 1024, 7, 7), "p", 1024),
    ((7, 24, 9, 5), "p", 40),
    ((9, 4, 9, 5), "p", 9),
]


@pytest.fixture(params=PRECISIONS, ids=lambda precision: precision[0])
def precision(request: pytest.FixtureRequest) -> Iterator[tuple[torch.dtype, float]]:
    _, dtype, matmul, tolerance = request.param
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = matmul == "high"
    yield dtype, tolerance
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.fixture(scope="module")
def fused() -> Any:
    package = dispatch.kernels()
    assert package is not None
    return package


@pytest.mark.parametrize(("shape", "kinds", "width"), CASES)
def test_a_layer(shape: Shape, kinds: str, width: int, precision: tuple[torch.dtype, float], fused: Any) -> None:
    """Where no rounding changes what a ReLU passes."""
    dtype, tolerance = precision
    found = layers(fused, shape, kinds, width, dtype, CUDA, decided=True)
    assert found.largest < tolerance, found


@pytest.mark.parametrize(("shape", "kinds", "width"), CASES)
def test_a_layer_with_relus_that_stop_half(shape: Shape, kinds: str, width: int, fused: Any) -> None:
    """A few numbers next to 0 may pass in one dtype only, each with its whole gradient: sums hardly see it."""
    torch.set_float32_matmul_precision("highest")
    found = layers(fused, shape, kinds, width, torch.float32, CUDA)
    assert found.largest < 1e-3, found


def test_a_network(precision: tuple[torch.dtype, float], fused: Any) -> None:
    """About as near to float64 as plain torch in the same precision: 27 layers multiply what rounding does."""
    dtype, tolerance = precision
    found, plain = (
        network(features, (16, 3, 96, 64), dtype, CUDA, width_multiplier=0.5)
        for features in (fused.body.features, plain_features)
    )
    assert found.output < 4 * plain.output + tolerance, (found, plain)
    assert found.of_gradients < 4 * plain.of_gradients + tolerance, (found, plain)
    assert found.of_buffers < 4 * plain.of_buffers + tolerance, (found, plain)


def test_not_a_number_comes_out_as_such() -> None:
    own = MobileNetV1(num_classes=10).to(CUDA)
    with torch.no_grad():
        own.layers()[3].conv.weight[5] = torch.nan
    features = own.features(torch.randn(4, 3, 64, 64, device=CUDA))
    features.sum().backward()
    assert features.isnan().all() and own.stem.conv.weight.grad is not None
    assert own.stem.conv.weight.grad.isnan().all()


def test_training_gives_the_same_bits_every_time() -> None:
    torch.manual_seed(0)
    own = MobileNetV1(num_classes=10).to(CUDA)
    images = torch.randn(16, 3, 64, 64, device=CUDA).contiguous(memory_format=torch.channels_last)
    runs = []
    for _ in range(2):
        with torch.autocast(CUDA, dtype=torch.float16):
            out = own.features(images)
        wanted = [*own.stem.parameters(), *own.blocks.parameters()]
        runs.append((out, *torch.autograd.grad(out.float().square().sum(), wanted)))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def losses(home: Path, *overrides: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Of each of 12 steps, and the weights and running statistics after them."""
    quieten()
    config = tiny_mobilenet(
        home, "hardware=auto", "fit.max_steps=12", "fit.max_epochs=2", "measure.window=1", "hp.batch_size=32",
        "model.task.network.width_multiplier=0.5", "model.task.augment.jitter=0", "model.task.augment.lighting=0",
        "model.task.augment.flip=false", *overrides,
    )  # fmt: skip
    job = build(settled(config), Clock())
    found: list[float] = []
    follow = job.task.training_step

    def noting(batch: Any, batch_idx: int) -> None:
        follow(batch, batch_idx)
        found.append(float(job.task.last["loss"]))

    job.task.training_step = noting  # type: ignore[method-assign]
    fit(job)
    return found, {name: value.clone() for name, value in job.task.network.state_dict().items()}


@pytest.mark.parametrize("precision_name", ["amp", "tf32", "bf16"])
def test_a_graph_gives_the_losses_and_weights_of_eager_steps(tmp_path: Path, precision_name: str) -> None:
    runs = [losses(tmp_path / g, f"precision={precision_name}", f"execution.graph={g}") for g in ("on", "off")]
    assert runs[0][0] == pytest.approx(runs[1][0], rel=1e-3)
    for name, weight in runs[0][1].items():
        torch.testing.assert_close(weight, runs[1][1][name], rtol=1e-2, atol=1e-3)


def test_training_on_kernels_follows_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, mine = losses(tmp_path / "kernels", "precision=fp32")
    monkeypatch.setattr(dispatch, "fused_for", lambda images, parameter: None)
    plain, theirs = losses(tmp_path / "plain", "precision=fp32", "execution.graph=off")
    assert kernels[:4] == pytest.approx(plain[:4], rel=1e-3)
    assert kernels == pytest.approx(plain, rel=5e-2)
    assert mine["stem.norm.num_batches_tracked"] == theirs["stem.norm.num_batches_tracked"] == 12
