"""The two ways to compute MoFlow's products: `reference` is literal, `fast` does the same with less work.

Both read the same parameters, so a checkpoint knows nothing of them.
"""

from typing import Literal

Execution = Literal["reference", "fast"]
