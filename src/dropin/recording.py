"""The rest of a network as CUDA graphs: `from se3_transformer.recording import record`, then `record(model)`.

Predictions of small proteins wait for the host, which launches thousands of kernels; a graph is launched as one.
"""

from typing import TypeVar

from torch import nn

from src.dropin.model.transformer import SE3Transformer, SE3TransformerPooled
from src.errors import UserError
from src.gpu import recorded

M = TypeVar("M", bound=nn.Module)
OURS = SE3Transformer, SE3TransformerPooled


def record(model: M, on: bool = True) -> M:
    """Has a network's modules run as CUDA graphs where they can, from the second call of a size on; returns it.

    Graphs are used on a GPU, in eval mode and without gradients, for the largest modules that a graph can contain.
    Other calls, results, state_dict, copies and pickles are as before. Weights may change in place, be loaded or
    be replaced.
    LayerNorm of up to 1,024 channels is computed by a kernel there, in float32 as torch does.
    A graph frees memory of 1 MiB and more after the last operator that uses it, though a variable names it still. It
    does not see kernels of C++ extensions that are no operators of torch and fill no new tensor: modules with such
    kernels need `module.reprise_graphs = False`.
    A graph does not repeat what a module does in Python (prints, counts), nor see attributes that changed and are no
    parameters or buffers: `record(model)` once more begins anew.

    Args:
        model: any module, such as RFdiffusion's RoseTTAFoldModule, whose calls take tensors of any shapes, numbers,
            strings, None, and lists and dictionaries of these. It changes in place.
        on: False undoes it.

    Raises:
        UserError: if the model is no module.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"record(model) takes a torch.nn.Module, not a {type(model).__name__}")
    return recorded.record(model, on, leave=OURS)


def report(model: nn.Module) -> str:
    """Returns a line for each class of modules: how many run as graphs, and why others do not."""
    return recorded.report(model)
