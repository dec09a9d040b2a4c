"""Measured times in few bytes, from which every rate and percentile can be computed again.

The times of many steps are alike. Sorted, their differences are small whole numbers, which deflate to about a byte.
"""

import base64
import zlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

UNIT_S = 1e-7  # a tenth of a microsecond; CUDA events count half ones
LARGEST = 2**27  # bytes that a text may unpack to: 16 million times


def packed(seconds: Sequence[float]) -> str:
    """Returns the sorted times, in tenths of a microsecond, as differences of 64-bit integers, deflated, in base64."""
    units = np.sort(np.rint(np.asarray(seconds, np.float64) / UNIT_S).astype("<i8"))
    return base64.b64encode(zlib.compress(np.diff(units, prepend=0).astype("<i8").tobytes(), 9)).decode()


def unpacked(text: str) -> Float[np.ndarray, " times"]:
    """Returns the sorted times in seconds. Raises ValueError for a text that `packed` has not made."""
    try:
        inflate = zlib.decompressobj()
        content = inflate.decompress(base64.b64decode(text, validate=True), LARGEST)
        differences = np.frombuffer(content, "<i8")
    except (ValueError, zlib.error) as error:
        raise ValueError(f"no packed times ({error})") from None
    units = np.cumsum(differences)
    if not inflate.eof or (differences < 0).any() or not (units >= 0).all():
        raise ValueError("no packed times")
    return units * UNIT_S
