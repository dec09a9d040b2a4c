"""Fast modules of DistilBERT: Triton kernels in the `*_triton` modules, their callers in those of the shorter name.

- `embedding`: word and position vectors, layer norm and dropout as one differentiable function.
- `layer`: a whole transformer layer as one differentiable function, and in `head` the classification head as another.
"""

from src.gpu.replace import Kernels, Replacements, replace_submodules
from src.models.distilbert.network import Block, DistilBert, Embeddings

REPLACEMENTS: Replacements = {
    "embedding": {Embeddings: f"{__name__}.embedding:FastEmbeddings"},
    "layer": {Block: f"{__name__}.layer:FastBlock", DistilBert: f"{__name__}.head:FastDistilBert"},
}


def accelerate(network: DistilBert, kernels: Kernels = "auto") -> DistilBert:
    """Replaces what `kernels` names by fast modules, in place, and the rest by plain ones; returns the network."""
    replace_submodules(network, REPLACEMENTS, kernels)
    return network
