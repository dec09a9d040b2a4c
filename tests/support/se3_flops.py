"""FLOPs of the plain modules that the network's cost leaves out."""

from src.models.se3_transformer.network import SE3TransformerPooled


def basis_macs(edges: int, max_degree: int) -> int:
    """Returns the multiply-adds of the basis, as torch counts them: J = 0 is no product."""
    degrees = range(max_degree + 1)
    return edges * sum(
        (2 * i + 1) * (2 * o + 1) * (2 * j + 1)
        for i in degrees
        for o in degrees
        for j in range(max(1, abs(i - o)), i + o + 1)
    )


def gradient_to_data(network: SE3TransformerPooled, nodes: int) -> int:
    """Returns the FLOPs of the first projection's gradient to its data, which is concatenated with attended values."""
    body = network.transformer
    if not len(body.blocks) or body.max_degree == 0:
        return 0
    return 2 * nodes * body.fiber_in.channels(0) * body.to_output.fiber_nodes.channels(0)
