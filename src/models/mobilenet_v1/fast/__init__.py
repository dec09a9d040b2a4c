"""Fast training of MobileNetV1: Triton kernels in the `*_triton` modules, their callers in those of the shorter name.

`body`: all layers from the images to the pooled features as one differentiable function, in training.
"""

from src.gpu.replace import Kernels, Replacements, replace_submodules
from src.models.mobilenet_v1.network import MobileNetV1

REPLACEMENTS: Replacements = {"body": {MobileNetV1: f"{__name__}.body:FastMobileNetV1"}}


def accelerate(network: MobileNetV1, kernels: Kernels = "auto") -> MobileNetV1:
    """Replaces what `kernels` names by fast modules, in place, and the rest by plain ones; returns the network."""
    replace_submodules(network, REPLACEMENTS, kernels)
    return network
