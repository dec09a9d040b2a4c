"""Fast modules of MoFlow: dense products in plain torch, on every device, and a Triton kernel for one gradient.

- `conv`: a 3x3 convolution of a 2x2 map as one dense product; on a GPU a kernel folds its weight's gradient.
- `graph_conv`: neighbours are summed before the wide product, and only for the rows that an atom step needs.
- `atom_flow`: all atom steps of a training step by Triton kernels that compute BatchNorm and coupling on their way.
- `bond_flow`: all bond steps of a training step, with a kernel for what lies between two products.
- `discrepancy`: that of generated molecules from real ones, whose products a kernel reads once.

Both flows also run backwards by kernels with the statistics that training kept. Of `atom_flow` that is `row_flow`, for
steps that compute their own row alone.
"""

from collections.abc import Callable

from torch import Tensor

from src.gpu.replace import Kernels, Replacements, replace_submodules
from src.gpu.triton_helpers import package
from src.models.moflow.atom import AtomFlow, AtomStep, GraphConv
from src.models.moflow.bond import BondFlow, Conv3x3
from src.models.moflow.network import MoFlow

DISCREPANCY = "discrepancy"  # in execution.kernels
REPLACEMENTS: Replacements = {
    "conv": {Conv3x3: f"{__name__}.conv:FastConv3x3"},
    "graph_conv": {
        GraphConv: f"{__name__}.graph_conv:FastGraphConv",
        AtomStep: f"{__name__}.graph_conv:FastAtomStep",
    },
    "atom_flow": {AtomFlow: f"{__name__}.row_flow:RowAtomFlow"},
    "bond_flow": {BondFlow: f"{__name__}.bond_flow:FastBondFlow"},
}
OF_TASK: Replacements = {**REPLACEMENTS, DISCREPANCY: {}}  # that is no module's


def discrepancy_by(kernels: Kernels) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Returns the discrepancy by kernels, if these are wanted; None where they are not, or without Triton."""
    is_wanted = kernels == "auto" or (kernels != "off" and DISCREPANCY in kernels)
    module = package(f"{__name__}.discrepancy") if is_wanted else None
    return module.discrepancy if module is not None else None


def accelerate(network: MoFlow, kernels: Kernels = "auto") -> MoFlow:
    """Replaces what `kernels` names by fast modules, in place, and the rest by plain ones; returns the network."""
    replace_submodules(network, REPLACEMENTS, kernels)
    return network
