"""Which modules' own forward must run: a fast module that computes what they would skips their hooks."""

from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
QUIET = "output_capturing_hook"  # Hugging Face's, which do nothing unless outputs are asked for


def hooked(module: nn.Module) -> bool:
    """Returns whether the module has hooks, or a forward of its own, that would be skipped."""
    state = module.__dict__
    return "forward" in state or any(
        QUIET not in getattr(hook, "__qualname__", "") for kind in HOOKS for hook in state[kind].values()
    )
