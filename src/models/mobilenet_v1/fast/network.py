"""The whole network in place of the plain one: its layers up to the pooled features are one function."""

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.triton_helpers import can_take
from src.models.mobilenet_v1.fast import body
from src.models.mobilenet_v1.network import MobileNetV1


class FastMobileNetV1(MobileNetV1):
    """In training with float32 weights: all layers by the kernels of `body`. Images get no gradient there."""

    def features(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch channels"]:
        is_float32 = self.classifier.weight.dtype == torch.float32
        if not (self.training and is_float32 and not images.requires_grad and can_take(images)):
            return super().features(images)
        self.check_variance(images)
        return body.features(images, self.layers())
