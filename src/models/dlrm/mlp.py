"""DLRM's stacks of linear layers."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Module):
    """Linear layers, each with a ReLU, from `widths[0]` inputs to `widths[-1]` outputs.

    Weights come from N(0, 2 / (fan_in + fan_out)), biases from N(0, 1 / fan_out), given as variances.

    Args:
        logit: whether a linear layer to one number follows, without ReLU and with torch's initialisation.
    """

    def __init__(self, widths: Sequence[int], logit: bool = False) -> None:
        super().__init__()
        self.widths, self.logit = (*widths, *[1] * logit), logit
        self.num_hidden = len(widths) - 1
        self.layers = nn.ModuleList()
        for fan_in, fan_out in pairwise(widths):
            layer = nn.Linear(fan_in, fan_out)
            nn.init.normal_(layer.weight, std=sqrt(2 / (fan_in + fan_out)))
            nn.init.normal_(layer.bias, std=sqrt(1 / fan_out))
            self.layers.append(layer)
        if logit:
            self.layers.append(nn.Linear(widths[-1], 1))

    def forward(self, x: Float[Tensor, "batch inputs"]) -> Float[Tensor, "batch outputs"]:
        layers = cast(list[nn.Linear], list(self.layers))
        for layer in layers[: self.num_hidden]:
            x = F.relu(layer(x))
        return layers[-1](x) if self.logit else x
