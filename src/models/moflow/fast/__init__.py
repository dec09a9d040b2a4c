"""Two executions of MoFlow's products: `reference` is literal, `fast` computes the same with less work.

Both read the same parameters, so checkpoints do not depend on the execution.
"""

from typing import Literal

Execution = Literal["reference", "fast"]
