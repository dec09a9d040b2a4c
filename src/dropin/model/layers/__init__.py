"""The layers: of NVIDIA's names and parameters, with the computations of `src.models.se3_transformer`."""

from src.dropin.model.layers.attention import AttentionBlockSE3
from src.dropin.model.layers.convolution import ConvSE3
from src.dropin.model.layers.linear import LinearSE3
from src.dropin.model.layers.norm import NormSE3
from src.dropin.model.layers.pooling import GPooling

__all__ = ["AttentionBlockSE3", "ConvSE3", "GPooling", "LinearSE3", "NormSE3"]
