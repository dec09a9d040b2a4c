"""Fast modules of the SE(3)-Transformer: Triton kernels in the `*_triton` modules, their callers in the others.

- `conv`: convolutions in edge-aligned frames, where the basis is sparse; in plain torch where Triton cannot run.
- `attention`: attention blocks whose messages stay in these frames. Without `conv` the blocks are the plain ones.
- `norm`, `linear`: NormSE3 and LinearSE3, each as one kernel.
- `radial`: the hidden layers of a radial network as one kernel.
"""

from typing import TypeVar

from src.gpu.replace import Kernels, Replacements, replace_submodules
from src.models.se3_transformer.attention import AttentionBlockSE3
from src.models.se3_transformer.conv import ConvSE3
from src.models.se3_transformer.linear import LinearSE3
from src.models.se3_transformer.network import SE3Transformer, SE3TransformerPooled
from src.models.se3_transformer.norm import NormSE3
from src.models.se3_transformer.radial import HiddenLayers

REPLACEMENTS: Replacements = {
    "conv": {ConvSE3: f"{__name__}.conv:FastConvSE3"},
    "attention": {AttentionBlockSE3: f"{__name__}.attention:FastAttentionBlockSE3"},
    "norm": {NormSE3: f"{__name__}.norm:FastNormSE3"},
    "linear": {LinearSE3: f"{__name__}.linear:FastLinearSE3"},
    "radial": {HiddenLayers: f"{__name__}.radial:FastHiddenLayers"},
}
Network = TypeVar("Network", SE3Transformer, SE3TransformerPooled)


def accelerate(network: Network, kernels: Kernels = "auto") -> Network:
    """Replaces what `kernels` names by fast modules, in place, and the rest by plain ones; returns the network."""
    replace_submodules(network, REPLACEMENTS, kernels)
    return network
