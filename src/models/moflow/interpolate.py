"""Interpolation between two molecules in latent space."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from src.errors import UserError
from src.gpu.exact_products import exact_products
from src.models.moflow.network import MoFlow
from src.molecules.draw import draw_interpolation
from src.molecules.encode import EncodingError, encode
from src.molecules.score import smiles_of
from src.molecules.standardise import encoded_as
from src.molecules.vocabulary import Vocabulary
from src.printable import printable
from src.system.tables import write_csv

KEY = "model.predict.interpolate"
Graph = tuple[UInt8[Tensor, " atoms"], UInt8[Tensor, "atoms atoms"]]


def encoded_ends(smiles: Sequence[str], vocabulary: Vocabulary) -> tuple[Graph, Graph]:
    """Returns both molecules as input of the network. Raises UserError unless there are two valid ones."""
    if len(smiles) != 2:
        raise UserError(f"{KEY} names {len(smiles)} molecule(s); give two, such as [CCO,CCN]")
    start, end = (encoded_end(text, vocabulary) for text in smiles)
    return start, end


def encoded_end(smiles: str, vocabulary: Vocabulary) -> Graph:
    try:
        nodes, edges = encode(smiles, vocabulary)
    except EncodingError as error:
        raise UserError(f"{KEY}: {smiles!r} {error}; give another molecule") from None
    if (encoded := encoded_as(smiles, nodes, edges, vocabulary)) == "":
        raise UserError(f"{KEY}: {smiles!r} is no molecule in the network's arrays; give one fragment without charges")
    if encoded is not None:
        print(printable(f"note: {KEY}: {smiles!r} is encoded as {encoded!r}"))
    return torch.from_numpy(nodes), torch.from_numpy(edges)


def interpolated(
    network: MoFlow, ends: tuple[Graph, Graph], steps: int, vocabulary: Vocabulary, correct_validity: bool
) -> list[str | None]:
    """Returns canonical SMILES at evenly spaced latents from the first to the second molecule; None where invalid."""
    device = network.ln_var.device
    (nodes0, edges0), (nodes1, edges1) = ((nodes.to(device), edges.to(device)) for nodes, edges in ends)
    with exact_products(device):
        nodes, edges = network.interpolate(nodes0, edges0, nodes1, edges1, steps)
    return smiles_of(nodes.cpu().numpy(), edges.cpu().numpy(), vocabulary, correct_validity)


def write_interpolation(smiles: list[str | None], output: Path) -> dict[str, Path]:
    """Writes OUTPUT_interpolation.csv (share of the way, SMILES or nothing) and .png next to `output`; returns both.

    If the picture cannot be drawn, prints why and returns the csv alone.
    """
    table, picture = (output.with_name(f"{output.stem}_interpolation{ending}") for ending in (".csv", ".png"))
    rows = ((f"{index / (len(smiles) - 1):.4f}", text) for index, text in enumerate(smiles))
    write_csv(table, ["share", "smiles"], rows)
    files = {"interpolation": table}
    try:
        draw_interpolation(smiles, picture)
    except UserError as error:
        print(f"note: {error}")
        return files
    return files | {"interpolation drawn": picture}
