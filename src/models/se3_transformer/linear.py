"""LinearSE3: one matrix per degree that mixes channels (arXiv:2006.10503, eq. 12)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from src.gpu.triton_helpers import working_dtype
from src.models.se3_transformer.fiber import Fiber


class LinearSE3(nn.Module):
    """A matrix [c_out, c_in] per degree, without bias, from N(0, 1) / sqrt(c_in).

    Degrees that only the input has are dropped; output degrees that no input has are zero and have no matrix.

    Args:
        sources: fibers of several inputs whose channels are concatenated in the matrices, in this order, which saves
            concatenating the inputs. None for one input of `fiber_in`.
    """

    def __init__(self, fiber_in: Fiber, fiber_out: Fiber, sources: tuple[Fiber, ...] | None = None) -> None:
        super().__init__()
        self.sources = sources or (fiber_in,)
        self.fiber_out = fiber_out
        self.weights = nn.ParameterDict(
            {
                str(degree): nn.Parameter(
                    torch.randn(c_out, fiber_in.channels(degree)) / math.sqrt(fiber_in.channels(degree))
                )
                for degree, c_out in fiber_out.items()
                if degree in fiber_in
            }
        )
        same_degrees = all(source.degrees == fiber_out.degrees for source in self.sources)
        self.batched = same_degrees and all(fiber.equal_channels for fiber in (*self.sources, fiber_out))

    def forward(self, *features: Float[Tensor, "nodes _"]) -> Float[Tensor, "nodes features_out"]:
        return self._all_at_once(features) if self.batched else self._by_degree(features)

    def passing(
        self, *features: Float[Tensor, "nodes _"]
    ) -> tuple[Float[Tensor, "nodes features_out"], Float[Tensor, "nodes _"]]:
        """Returns the output, and the first input for its other uses; a kernel may add their gradient to its own."""
        return self(*features), features[0]

    def _all_at_once(self, features: tuple[Tensor, ...]) -> Tensor:
        dtype = working_dtype(features[0])
        return multiply(tuple(x.to(dtype) for x in features), self.stacked().to(dtype), self.fiber_out)

    def stacked(self) -> Float[Tensor, "degrees outer inner"]:
        """Returns the matrices of all degrees, which have equal shapes."""
        return torch.stack([self.weights[str(degree)] for degree in self.fiber_out])

    def _by_degree(self, features: tuple[Tensor, ...]) -> Tensor:
        parts = []
        for degree, c_out in self.fiber_out.items():
            present = [
                fiber.part(x, degree) for fiber, x in zip(self.sources, features, strict=True) if degree in fiber
            ]
            if present:
                part = F.linear(torch.cat(present, 2), self.weights[str(degree)])
            else:
                part = features[0].new_zeros(features[0].shape[0], 2 * degree + 1, c_out)
            parts.append(part.flatten(1))
        return torch.cat(parts, 1)


def multiply(
    inputs: tuple[Float[Tensor, "nodes _"], ...], weights: Float[Tensor, "degrees outer inner"], fiber_out: Fiber
) -> Float[Tensor, "nodes features"]:
    """Multiplies every degree's channels by its matrix; all fibers have the output's degrees and equal channels.

    The matrices' inner columns are those of the inputs in order. One product per input, batched over components.
    """
    by_component = torch.cat([w.expand(2 * d + 1, -1, -1) for d, w in zip(fiber_out, weights, strict=True)])
    parts = [x.unflatten(1, (len(by_component), -1)).transpose(0, 1) for x in inputs]
    matrices = by_component.transpose(1, 2).split([part.shape[2] for part in parts], 1)
    terms = [part.bmm(matrix) for part, matrix in zip(parts, matrices, strict=True)]
    return sum(terms[1:], terms[0]).transpose(0, 1).flatten(1)
