"""MobileNetV1's fused kernels in Triton's interpreter; test_gpu.py runs them at full size."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from src.gpu import weight_copies
from src.gpu.precompile import LIST, is_for
from src.gpu.weight_copies import WeightCopies
from src.models.mobilenet_v1 import fast
from src.models.mobilenet_v1.fast import tiles
from src.models.mobilenet_v1.fast.body import launches_of
from src.models.mobilenet_v1.fast.tiles import Tile, block_of, strips_of, tile_of
from src.models.mobilenet_v1.network import ConvNormReLU, Depthwise, MobileNetV1, Pointwise
from tests.support.kernel_differences import random
from tests.support.mobilenet_in_place import checked_kernels
from tests.support.mobilenet_kernels import Shape, layers, network, plain_features

fused: Any = fast
TOLERANCES = {torch.float32: 5e-5, torch.float16: 6e-3, torch.bfloat16: 8e-2}
# Images, channels, height and width; the layers' kinds; channels of a pointwise one.
CASES = [
    ((2, 32, 7, 4), "1", 0),
    ((2, 8, 5, 6), "1", 0),
    ((2, 40, 7, 5), "2", 0),
    ((3, 32, 6, 8), "2", 0),
    ((9, 16, 1, 3), "2", 0),
    ((1, 16, 4, 61), "1", 0),
    ((1, 40, 5, 61), "2", 0),
    ((3, 32, 7, 7), "p", 64),
    ((5, 9, 5, 5), "p", 20),
    ((2, 64, 2, 3), "p", 16),
]


@pytest.mark.parametrize(
    ("shape", "kinds", "width", "dtype"),
    [(*case, torch.float32) for case in CASES[::2]]
    + [pytest.param(*case, torch.float32, marks=pytest.mark.slow) for case in CASES[1::2]]
    + [pytest.param(*case, torch.float16, marks=pytest.mark.slow) for case in CASES]
    + [pytest.param(*case, torch.bfloat16, marks=pytest.mark.slow) for case in CASES[::3]],
)
def test_a_layer_agrees_with_float64(shape: Shape, kinds: str, width: int, dtype: torch.dtype) -> None:
    """Outputs, all gradients and running statistics; no ReLU's input changes sign by rounding."""
    tolerance = TOLERANCES[dtype]
    errors = layers(fused, shape, kinds, width, dtype, decided=True)
    assert errors.largest < tolerance, errors.above(tolerance)


@pytest.mark.parametrize(
    ("shape", "kinds", "width"),
    [case if i % 4 == 3 else pytest.param(*case, marks=pytest.mark.slow) for i, case in enumerate(CASES)],
)
def test_a_layer_with_active_relus_agrees_with_float64(shape: Shape, kinds: str, width: int) -> None:
    errors = layers(fused, shape, kinds, width, torch.float32)
    assert errors.largest < 2e-5, errors.above(2e-5)


@pytest.mark.parametrize("cap", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_each_kernel_of_some_layers_agrees_with_float64(cap: float) -> None:
    """As test_gpu.py checks those of whole networks."""
    torch.manual_seed(0)
    layers = MobileNetV1(num_classes=6, width_multiplier=0.25).layers()[:5]
    with checked_kernels(fused) as errors:
        images = torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last)
        fused.body.apply_body(images, layers, torch.float32, cap).square().sum().backward()
    assert len(errors) == 18 and max(errors.values()) < 2e-6, errors


@pytest.mark.parametrize("kinds", ["1", "2", pytest.param("p1p", marks=pytest.mark.slow)])
def test_relus_that_end_at_a_value_agree_with_float64(kinds: str) -> None:
    """As timm's ReLU6: half of the outputs are 0, and most others would be above 4."""
    errors = layers(fused, (2, 16, 4, 5), kinds, 16, torch.float32, decided=True, cap=6.0)
    assert errors.largest < 1e-4, errors.above(1e-4)


@pytest.mark.slow
def test_several_layers_agree_with_float64() -> None:
    """Kernels use the partial sums of other kernels."""
    errors = layers(fused, (2, 12, 6, 5), "2p1", 24, torch.float32)
    assert errors.largest < 5e-5, errors.above(5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["1", "2", "p"])
def test_programs_with_several_tiles_agree_with_float64(kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for many pixels; the last tile and the last program are smaller."""
    monkeypatch.setattr(fused.stem, "PROGRAMS", 2)
    monkeypatch.setattr(fused.pointwise, "tile_of", lambda *key: tile_of(*key)._replace(programs=2))
    # A depthwise layer's images are cut into segments of rows, the last one shorter.
    monkeypatch.setattr(fused.depthwise, "strips_of", lambda *key: strips_of(*key)._replace(programs=20))
    monkeypatch.setattr(fused.norm, "CONCLUDED_AT_ONCE", 2)
    errors = layers(fused, (5, 16, 7, 8), kinds, 16, torch.float32)
    assert errors.largest < 2e-5, errors.above(2e-5)


@pytest.mark.parametrize(("inputs", "outputs", "cap"), [(9, 20, 0.0), (16, 16, 1.0)])
def test_both_gradients_of_a_pointwise_layer_by_one_kernel_equal_those_of_two(
    inputs: int, outputs: int, cap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several tiles a program, the last one of few pixels, and channels that fill no block."""
    tile = Tile(16, 16, block_of(outputs, 128), 4, 2, 2)
    g, out = (random(3, 5, 5, outputs, seed=seed).float() for seed in (0, 1))
    z, weight = random(3, 5, 5, inputs, seed=2).float(), random(outputs, inputs, seed=3).float()
    arguments = g, out, random(3, outputs, seed=4).float(), weight, z, random(4, inputs, seed=5).float(), cap
    two = fused.pointwise.gradients(*arguments)
    monkeypatch.setattr(fused.pointwise, "tile_of_both", lambda *_: tile)
    with checked_kernels(fused) as errors:
        one = fused.pointwise.gradients(*arguments)
    assert len(one[1].values) == 2 and len(errors) == 4 and max(errors.values()) < 2e-6, errors
    for a, b in zip((one[0], one[1].values.sum(0), one[2]), (two[0], two[1].values.sum(0), two[2]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["1", "p"])
def test_statistics_are_accurate_far_from_0(kinds: str) -> None:
    """With means of 30 deviations; sums of plain squares would leave 4 digits of the variance."""
    errors = layers(fused, (6, 16, 5, 5), kinds, 16, torch.float32, offset=30.0)
    variance = max(value for name, value in errors.buffers.items() if name.endswith("running_var"))
    assert variance < 2e-6, errors


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.slow
def test_statistics_of_a_depthwise_layer_are_accurate_far_from_0(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With means of 300 deviations, also at borders (only one tap is not 0), in strips down whole images."""
    monkeypatch.setattr(fused.depthwise, "strips_of", lambda *key: strips_of(*key)._replace(programs=1))
    z, norm = random(2, 23, 15, 16, seed=0).float(), torch.tensor([[0.0], [1.0], [1.0], [300.0]]).repeat(1, 16)
    out, partials = fused.depthwise.forward(z, norm, torch.eye(9)[4].repeat(16, 1), stride)
    assert torch.equal(out, (z + 300)[:, ::stride, ::stride])
    batch_norm = torch.nn.BatchNorm2d(16, momentum=1.0)
    fused.norm.conclude(partials, batch_norm)
    assert batch_norm.running_var is not None and batch_norm.running_mean is not None
    expected = out.double().flatten(0, 2)
    torch.testing.assert_close(batch_norm.running_mean.double(), expected.mean(0), rtol=2e-7, atol=0)
    torch.testing.assert_close(batch_norm.running_var.double(), expected.var(0), rtol=2e-5, atol=0)


@pytest.mark.slow
def test_a_network_with_small_strides_agrees_with_float64() -> None:
    """Its errors are at most five times those of plain torch: 9 layers amplify rounding."""
    strides = [1, 1, 2, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    errors, plain = (
        network(features, (3, 3, 5, 7), torch.float32, depth=9, width_multiplier=0.125, strides=strides)
        for features in (fused.body.features, plain_features)
    )
    assert errors.output < 5 * plain.output and errors.of_gradients < 5 * plain.of_gradients, (errors, plain)
    assert errors.of_buffers < 1e-5 and plain.output < 1e-3 and plain.of_gradients < 0.02, (errors, plain)


def tiny_layers() -> list[ConvNormReLU]:
    torch.manual_seed(0)
    return [ConvNormReLU(3, 8, 3, 2), Depthwise(8, 1), Pointwise(8, 4)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter adds with numpy
def test_nan_propagates() -> None:
    layers = tiny_layers()
    with torch.no_grad():
        layers[1].conv.weight[3] = torch.nan
    out = fused.body.features(torch.randn(2, 3, 6, 6), layers)
    out.sum().backward()
    assert out.isnan().all()
    for tensor in (layers[1].norm.running_var, layers[1].norm.bias.grad, layers[0].norm.weight.grad):
        assert tensor is not None and bool(tensor[3].isnan())
    assert layers[0].norm.running_var is not None and not layers[0].norm.running_var.isnan().any()


def test_training_is_deterministic() -> None:
    runs, layers = [], tiny_layers()
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    for _ in range(2):
        out = fused.body.features(torch.ones(2, 3, 6, 6).cumsum(-1).sin(), layers)
        runs.append((out, *torch.autograd.grad(out.square().sum(), parameters)))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_a_single_value_per_channel_is_an_error() -> None:
    with pytest.raises(ValueError, match="more than one value"):
        fused.body.features(torch.randn(1, 3, 2, 2), tiny_layers())


def test_launches_are_recorded_without_running() -> None:
    """Each kernel once, with the argument types and constants of its launch."""
    layers, images = tiny_layers(), torch.randn(2, 3, 6, 6)
    with fused.precompile.record_launches() as launches:
        fused.body.features(images, layers).sum().backward()
    names = [(launch.module.rpartition(".")[2], launch.kernel) for launch in launches]
    assert ("depthwise_backward_triton", "backward") in names and ("norm_triton", "pool") in names
    assert all(bool((layer.norm.running_var == 1).all()) for layer in layers)
    forward = next(launch for launch in launches if launch.kernel == "forward" and "depthwise" in launch.module)
    assert forward.arguments[:5] == (torch.float32,) * 5 and dict(forward.constants)["CHANNELS"] == 8
    fused.body.features(images, layers)
    assert not any(bool((layer.norm.running_var == 1).any()) for layer in layers)


def test_weights_of_pointwise_layers_are_kept_copies() -> None:
    """Others are cast at each pass; compiling ahead keeps none."""
    layers = tiny_layers()
    with WeightCopies().active():
        first, second = (fused.body.weight_matrices(layers, torch.float16) for _ in range(2))
        launches_of(torch.randn(2, 3, 6, 6).half(), layers, torch.float16)
        kept = weight_copies.kept()
    weight = layers[2].conv.weight
    assert kept.keys() == {weight.data_ptr()} and torch.equal(kept[weight.data_ptr()], weight.half())
    assert first[2].data_ptr() == second[2].data_ptr() == kept[weight.data_ptr()].data_ptr()
    assert first[0].data_ptr() != second[0].data_ptr()
    for layer, matrix in zip(layers, first, strict=True):
        expected = layer.conv.weight.detach().permute(0, 2, 3, 1).flatten(1)
        assert torch.equal(matrix, expected if layer.is_depthwise else expected.half())


def test_tiles_of_a_number_of_rows_or_images_are_taken_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, own = tile_of("forward", 4096, 512, 512, "half"), Tile(64, 64, 64, 4, 3, 132)
    strips = strips_of("backward", 14, 512, 2, 64)
    table = {("forward", 512, 512, "half", 4096): own, ("both", 128, 128, "half", 4096): None}
    monkeypatch.setattr(tiles, "TILES", tiles.TILES | table)
    monkeypatch.setattr(tiles, "STRIPS", {("backward", 14, 512, 2, 64): strips._replace(warps=1)})
    assert tile_of("forward", 4096, 512, 512, "half") == own != rule == tile_of("forward", 8192, 512, 512, "half")
    assert tiles.tile_of_both(4096, 128, 128, "half") is None and tiles.tile_of_both(8192, 128, 128, "half")
    assert tiles.tile_of_both(4, 128, 128, "half") is None
    assert strips_of("backward", 14, 512, 2, 64).warps == 1 and strips_of("backward", 14, 512, 2, 128) == strips


def test_layers_take_all_measured_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 64 or 256 images, the batches that were measured; a key of no layer would go unnoticed."""
    taken = set[Any]()

    class Noting(dict[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            taken.add(key)
            return super().get(key, default)

    for name in ("TILES", "STRIPS"):
        monkeypatch.setattr(tiles, name, Noting(vars(tiles)[name]))
    for images in (64, 256):
        with torch.device("meta"):
            launches_of(torch.empty(images, 3, 224, 224, dtype=torch.float16), MobileNetV1().layers(), torch.float16)
    assert taken >= tiles.TILES.keys() | tiles.STRIPS.keys()


@pytest.mark.parametrize("batch_size", [64, 256])
@pytest.mark.parametrize(("precision", "dtype"), [("amp", torch.float16), ("tf32", torch.float32)])
def test_the_list_has_all_kernels_of_the_published_cases(precision: str, dtype: torch.dtype, batch_size: int) -> None:
    """By their constants; `SETTLE` is of the chip, and so is the product's precision. Images come standardised."""
    with torch.device("meta"):
        images = torch.empty(batch_size, 3, 224, 224, dtype=dtype)
        launches = launches_of(images, MobileNetV1().layers(), dtype)
    # Sums of other numbers of partial sums are not other kernels.
    unlike = {launch._replace(arguments=()) if launch.kernel == "sum_partials" else launch for launch in launches}
    launched = Counter(by_constants(f"{launch.module}:{launch.kernel}", dict(launch.constants)) for launch in unlike)
    listed = Counter[Any]()
    for entry in json.loads((Path(fast.__file__).parent / LIST).read_text()):
        is_used = precision in entry["precisions"] and is_for(entry, {"hp.batch_size": batch_size}.get)
        if is_used and not re.search("images_triton|sgd_triton", entry["kernel"]):
            listed[by_constants(entry["kernel"], entry["constants"])] += 1
    assert listed == launched


def by_constants(kernel: str, constants: dict[str, Any]) -> tuple[str, frozenset[Any]]:
    of_kernel = [name for name in constants if name.isupper() and name not in ("SETTLE", "PRECISION")]
    return kernel, frozenset((name, constants[name]) for name in of_kernel)
