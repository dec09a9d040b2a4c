"""Fast modules of the small ResNet: Triton kernels in `add_triton`, their callers in `add`.

`add`: the sum and the ReLU at the end of a block as one kernel.
"""

from src.models.small_resnet.network import Block, SmallResNet

from src.gpu.replace import Kernels, Replacements, replace_submodules

REPLACEMENTS: Replacements = {"add": {Block: f"{__name__}.add:FastBlock"}}


def accelerate(network: SmallResNet, kernels: Kernels = "auto") -> SmallResNet:
    """Replaces what `kernels` names by fast modules, in place, and the rest by plain ones; returns the network."""
    replace_submodules(network, REPLACEMENTS, kernels)
    return network
