"""The optimisers whose steps kernels take, by their names in `execution.kernels`."""

from torch.optim.optimizer import Optimizer

from src.gpu.replace import Kernels, Replacements
from src.training import adagrad, adam, sgd

RULES = {rule.NAME: rule.use_kernels for rule in (adam, sgd, adagrad)}
REPLACEMENTS: Replacements = {name: {} for name in RULES}  # these names are no module's


def use_kernels(optimizer: Optimizer, kernels: Kernels) -> None:
    """Has an optimiser take its steps by kernels if there are some for it and `kernels` names them."""
    for name, use in RULES.items():
        if kernels == "auto" or name in kernels:
            use(optimizer)
