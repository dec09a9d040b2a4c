"""MoFlow: a normalising flow over molecular graphs, in NVIDIA's variant.

Usable without Lightning and Hydra:

    network = MoFlow()
    network.initialize(nodes, edges)  # once, from the first batch
    loss = network.loss(network(nodes, edges))
    nodes, edges = network.eval().sample(10)
"""

from src.models.moflow.network import MoFlow

__all__ = ["MoFlow"]
