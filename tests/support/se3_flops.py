"""What the reference execution multiplies that the network's cost rightly leaves out."""

from src.models.se3_transformer.network import SE3TransformerPooled


def basis_macs(edges: int, max_degree: int) -> int:
    """What making the basis takes, as torch counts it: J = 0 is no product to it."""
    degrees = range(max_degree + 1)
    return edges * sum(
        (2 * i + 1) * (2 * o + 1) * (2 * j + 1)
        for i in degrees
        for o in degrees
        for j in range(max(1, abs(i - o)), i + o + 1)
    )


def gradient_to_data(network: SE3TransformerPooled, nodes: int) -> int:
    """FLOPs that the first projection spends on its data, where that stands in one tensor with what was attended."""
    body = network.transformer
    if not len(body.blocks) or body.max_degree == 0:
        return 0
    return 2 * nodes * body.fiber_in.channels(0) * body.to_output.fiber_nodes.channels(0)
