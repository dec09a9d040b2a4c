"""Small functions on features by name, as NVIDIA's package has them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from src.errors import UserError


def degree_to_dim(degree: int) -> int:
    """Returns the components of a feature of this degree."""
    return 2 * degree + 1


def unfuse_features(features: Tensor, degrees: Sequence[int]) -> dict[str, Tensor]:
    """Returns {str(degree): [..., 2 degree + 1]} of features whose components are joined in the last dimension."""
    sizes = [degree_to_dim(degree) for degree in degrees]
    return {str(degree): part for degree, part in zip(degrees, features.split(sizes, -1), strict=True)}


def aggregate_residual(feats1: Mapping[str, Tensor], feats2: Mapping[str, Tensor], method: str) -> dict[str, Tensor]:
    """Returns `feats2` with `feats1` added (add, sum), or with its channels appended (cat, concat)."""
    if method not in ("add", "sum", "cat", "concat"):
        raise UserError(f"method={method} is not allowed; expected add, sum, cat or concat")
    joined = dict(feats2)
    for degree in joined.keys() & feats1.keys():
        pair = joined[degree], feats1[degree]
        joined[degree] = pair[0] + pair[1] if method in ("add", "sum") else torch.cat(pair, 1)
    return joined


def str2bool(v: bool | str) -> bool:
    """Returns the truth value of a command line's word."""
    word = str(v).lower()
    if word in ("yes", "true", "t", "y", "1"):
        return True
    if word in ("no", "false", "f", "n", "0"):
        return False
    raise UserError(f"{v} is no truth value; expected true or false")


def to_cuda(x: Any) -> Any:
    """Returns tensors, graphs, and lists, tuples and dicts of them, on the current GPU."""
    if isinstance(x, dict):
        return {key: to_cuda(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return type(x)([to_cuda(value) for value in x])
    return x.to(torch.device("cuda", torch.cuda.current_device()))


def using_tensor_cores(amp: bool) -> bool:
    """Returns whether products run on tensor cores by NVIDIA's rule: with AMP since Volta, else since Ampere."""
    major, _ = torch.cuda.get_device_capability()
    return major >= 8 or (amp and major >= 7)
