"""Fast modules of DLRM: Triton kernels in the `*_triton` modules, their callers in those of the shorter name.

- `tables`: lookup and update of embedding rows, and the exchange between GPUs through peer memory.
- `interaction`: the products of all pairs of vectors, and their gradients.
- `cross`: DCNv2's cross layers.
- `mlp`: a whole MLP as one differentiable function.
- `loss`: the mean cross entropy of logits in a training, with `mlp` in `execution.kernels`.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from src.gpu.replace import Kernels, Replacements, replace_submodules
from src.gpu.triton_helpers import package
from src.models.dlrm.embeddings import PlainEmbeddings
from src.models.dlrm.mlp import MLP
from src.models.dlrm.network import DLRM, CrossNet, Dot
from src.models.dlrm.sharded import ShardedEmbeddings

REPLACEMENTS: Replacements = {
    "tables": {
        PlainEmbeddings: f"{__name__}.embeddings:FastEmbeddings",
        ShardedEmbeddings: f"{__name__}.embeddings:FastShardedEmbeddings",
    },
    "interaction": {
        Dot: f"{__name__}.interaction:FastDot",
        CrossNet: f"{__name__}.cross:FastCrossNet",
    },
    "mlp": {MLP: f"{__name__}.mlp:FastMLP"},
}


def loss_by(kernels: Kernels) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns the mean cross entropy of logits: by kernels, or torch's where these are not wanted or cannot be."""
    is_wanted = kernels == "auto" or (kernels != "off" and "mlp" in kernels)
    module = package(f"{__name__}.loss") if is_wanted else None
    return F.binary_cross_entropy_with_logits if module is None else module.bce


def accelerate(network: DLRM, kernels: Kernels = "auto") -> DLRM:
    """Replaces what `kernels` names by fast modules, in place, and the rest by plain ones; returns the network.

    Tables that are spread over ranks have to be replaced before `ShardedEmbeddings.place`.
    """
    replace_submodules(network, REPLACEMENTS, kernels)
    return network
