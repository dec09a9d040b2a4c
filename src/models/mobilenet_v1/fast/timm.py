"""timm's MobileNetV1 by the kernels of `body`: its EfficientNet class, where all layers are those of a MobileNetV1."""

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
from timm.layers import BatchNormAct2d  # type: ignore[import-not-found]
from timm.models import efficientnet as plain  # type: ignore[import-not-found]
from timm.models._efficientnet_blocks import DepthwiseSeparableConv  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.nn import functional as F

from src.gpu import training_graphs
from src.gpu.hooks import Parts, hooked, parts_of, uncompiled
from src.gpu.triton_helpers import can_take, working_dtype
from src.models.mobilenet_v1.fast import body
from src.models.mobilenet_v1.fast.body import ConvNorm

CAPS: dict[type[nn.Module], float] = {nn.ReLU: 0.0, nn.ReLU6: 6.0}
_layers: WeakKeyDictionary[Parts, tuple[list[ConvNorm], float]] = WeakKeyDictionary()


class EfficientNet(plain.EfficientNet):
    """In training with float32 weights: all layers up to the pooling by the kernels. Images get no gradient there.

    It keeps the plain class's name, which timm's checkpoints and logs show.
    """

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(x)
        if pooled is None:
            return super().forward(x)
        if self.drop_rate > 0.0:
            pooled = F.dropout(pooled, p=self.drop_rate, training=self.training)
        return self.classifier(pooled)

    def takes(self, x: Tensor) -> bool:
        """Returns whether the kernels compute what the plain class would."""
        weights = self.conv_stem.weight.dtype
        is_supported = weights == x.dtype == torch.float32 and not x.requires_grad and not self.grad_checkpointing
        return (
            self.training
            and can_take("body", x, is_supported, weights=weights, images=x.dtype, gradient_of_images=x.requires_grad)
            and (parts_of(self).are_plain(training=True) or self.is_plain_but_classifier())
        )

    def is_plain_but_classifier(self) -> bool:
        """Returns whether the kernels skip nothing: the classifier is called, with its hooks."""
        return all(
            module.training and (name == "classifier" or not hooked(module))
            for name, module in self.named_modules()
            if name
        )

    @uncompiled
    def pooled(self, x: Tensor) -> Tensor | None:
        """Returns the pooled features; None where the plain class must compute them."""
        if not self.takes(x):
            return None
        layers, cap = layers_of(self, parts_of(self))
        parameters = body.parameters_of(layers)
        statistics = tuple(layer.norm.running_mean.data_ptr() for layer in layers)  # type: ignore[union-attr]

        def function(inputs: "training_graphs.Tensors", weights: "training_graphs.Tensors") -> Tensor:
            return body.features(inputs[0], layers, cap, weights)

        return training_graphs.run(self, function, [x], parameters, (working_dtype(x), cap, statistics))

    @staticmethod
    def obstacles(model: plain.EfficientNet) -> Iterator[tuple[str, str]]:
        """Yields what the kernels cannot take: a module's name and the reason."""
        for name, module in (("conv_head", model.conv_head), ("bn2", model.bn2)):
            if type(module) is not nn.Identity:
                yield name, "a head with a convolution; expected the pooled features of the last block"
        pool = model.global_pool
        if getattr(pool, "pool_type", None) != "avg" or type(getattr(pool, "flatten", None)) is not nn.Flatten:
            yield "global_pool", "expected average pooling, flattened"
        yield from of_layer("", model, "conv_stem", "bn1", (3, 3), depthwise=False)
        for name, block in model.blocks.named_modules(prefix="blocks"):
            if isinstance(block, nn.Sequential):
                continue
            if name.count(".") == 2 and type(block) is not DepthwiseSeparableConv:
                yield name, f"{type(block).__name__}; expected depthwise separable convolutions alone"
            elif name.count(".") == 2:
                if block.has_skip or block.conv_s2d is not None:
                    yield name, "a residual or a space-to-depth convolution"
                for part in ("aa", "se", "drop_path"):
                    if type(getattr(block, part)) is not nn.Identity:
                        yield f"{name}.{part}", "is not in a MobileNetV1"
                yield from of_layer(f"{name}.", block, "conv_dw", "bn1", (3, 3), depthwise=True)
                yield from of_layer(f"{name}.", block, "conv_pw", "bn2", (1, 1), depthwise=False)
        kinds = {type(module) for name, module in model.named_modules() if name.endswith(".act")}
        if len(kinds) != 1 or not kinds <= CAPS.keys():
            yield "blocks", f"activations {sorted(kind.__name__ for kind in kinds)}; expected ReLU alone or ReLU6 alone"


def of_layer(
    prefix: str, parent: nn.Module, conv_name: str, norm_name: str, kernel: tuple[int, int], depthwise: bool
) -> Iterator[tuple[str, str]]:
    """Yields why the kernels cannot take a convolution and its norm."""
    conv, norm = getattr(parent, conv_name), getattr(parent, norm_name)
    if type(conv) is not nn.Conv2d:
        yield prefix + conv_name, f"{type(conv).__name__}; expected Conv2d"
        return
    groups = conv.in_channels if depthwise else 1
    strides = ((1, 1), (2, 2)) if kernel == (3, 3) else ((1, 1),)
    shape = conv.kernel_size, conv.padding, conv.dilation, conv.groups, conv.bias is None
    if shape != (kernel, (kernel[0] // 2,) * 2, (1, 1), groups, True) or conv.stride not in strides:
        yield prefix + conv_name, "another kernel, padding, stride, dilation, groups or bias than MobileNetV1's"
    if type(norm) is not BatchNormAct2d or type(norm.drop) is not nn.Identity:
        yield prefix + norm_name, f"{type(norm).__name__}; expected BatchNormAct2d without dropout"
    elif not norm.affine or not norm.track_running_stats or norm.momentum is None:
        yield prefix + norm_name, "expected BatchNorm with weight, bias and running averages of a fixed momentum"


def layers_of(model: plain.EfficientNet, parts: Parts) -> tuple[list[ConvNorm], float]:
    """Returns the layers in order, and where their ReLUs end (0: nowhere); listed once for the same modules."""
    if parts not in _layers:
        _layers[parts] = listed(model)
    return _layers[parts]


def listed(model: plain.EfficientNet) -> tuple[list[ConvNorm], float]:
    layers = [ConvNorm(model.conv_stem, model.bn1, False)]
    for block in (block for stage in model.blocks for block in stage):
        layers += [ConvNorm(block.conv_dw, block.bn1, True), ConvNorm(block.conv_pw, block.bn2, False)]
    return layers, CAPS[type(model.bn1.act)]
