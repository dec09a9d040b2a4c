"""One folder a model: a network in plain torch, its task, its cost, its kernels."""
