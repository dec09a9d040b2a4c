"""Fast modules of DLRM: Triton kernels in the `*_triton` modules, their callers in those of the shorter name.

- `tables`: lookup and update of embedding rows, and the exchange between GPUs through peer memory.
- `interaction`: the products of all pairs of vectors, and their gradients.
- `cross`: DCNv2's cross layers.
- `mlp`: a whole MLP as one differentiable function.
"""

from src.gpu.replace import Kernels, Replacements, replace_submodules
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


def accelerate(network: DLRM, kernels: Kernels = "auto") -> DLRM:
    """Replaces what `kernels` names by fast modules, in place, and the rest by plain ones; returns the network.

    Tables that are spread over ranks have to be replaced before `ShardedEmbeddings.place`.
    """
    replace_submodules(network, REPLACEMENTS, kernels)
    return network
