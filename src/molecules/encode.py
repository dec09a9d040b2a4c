"""Encode SMILES as arrays, as published for MoFlow (github.com/calvin-zcx/moflow)."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import TypeVar

import numpy as np
from jaxtyping import UInt8
from rdkit import Chem, RDLogger

from src.molecules.build import Edges, Nodes, build_molecule, canonical_smiles, published_smiles
from src.molecules.kekule import kekulize
from src.molecules.vocabulary import Vocabulary
from src.system.progress import item_progress
from src.system.workers import WorkerPool

CHUNK = 256
LONGEST_SMILES = 2000  # characters: RDKit takes minutes for a million
T = TypeVar("T")
R = TypeVar("R")


class Reason(StrEnum):
    """Why a SMILES cannot be encoded."""

    UNPARSABLE = "does not parse"
    UNKNOWN_ATOM = "has an atom outside the vocabulary"
    TOO_LARGE = "has too many atoms"
    TOO_LONG = "is too long"
    UNSUPPORTED_BOND = "has a bond that is not single, double or triple"
    EMPTY = "has no SMILES"
    REACTION = "is a reaction"
    REPEAT = "is a polymer, or has groups without a place"
    FRAGMENTS = "is a salt or mixture of several fragments"
    WILDCARD = "has a wildcard in place of an atom"
    HYDROGEN = "has a hydrogen that is no other atom's"
    ISOTOPE = "has isotope labels"
    RADICAL = "has unpaired electrons"
    STEREO = "has stereo"
    CHARGE = "has charges that atoms and bonds alone do not give"
    VALENCE = "has valences that atoms and bonds alone do not give"
    RARE = "has a rare element"
    DUPLICATE = "is the molecule of an earlier line"


class EncodingError(ValueError):
    """A SMILES that cannot be encoded, with the `reason` and a message for the user."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return f"{self.reason}{self.detail}"


@dataclass(frozen=True)
class Encoded:
    """Encoded molecules in input order, with SMILES of the graphs in the arrays.

    `published` has the form that the published code gives to training molecules. `canonical` is RDKit's canonical
    SMILES of the molecule built from the arrays, empty if none can be built. Both lack stereo and negative charges.
    """

    nodes: UInt8[np.ndarray, "molecules max_atoms"]
    edges: UInt8[np.ndarray, "molecules max_atoms max_atoms"]
    published: list[str]
    canonical: list[str]


def encode(smiles: str, vocabulary: Vocabulary) -> tuple[Nodes, Edges]:
    """Returns atom classes and bond orders, the atoms in the order of RDKit's canonical SMILES without stereo.

    Drops hydrogens, charges and stereo; aromatic bonds become single and double ones. Raises EncodingError.
    """
    if len(smiles) > LONGEST_SMILES:
        raise EncodingError(Reason.TOO_LONG, f": {len(smiles):,} characters, and at most {LONGEST_SMILES:,} are read")
    parsed = Chem.MolFromSmiles(smiles)
    molecule = None if parsed is None else Chem.MolFromSmiles(canonical_smiles(parsed))
    if molecule is None or molecule.GetNumAtoms() == 0:
        raise EncodingError(Reason.UNPARSABLE)
    num_atoms = molecule.GetNumAtoms()
    numbers = [atom.GetAtomicNum() for atom in molecule.GetAtoms()]
    classes = vocabulary.class_of[numbers]
    if not classes.all():
        symbol = molecule.GetAtomWithIdx(int(np.argmin(classes))).GetSymbol()
        raise EncodingError(Reason.UNKNOWN_ATOM, f" of {vocabulary.name}: {symbol}")
    if num_atoms > vocabulary.max_atoms:
        raise EncodingError(Reason.TOO_LARGE, f": {num_atoms}, and at most {vocabulary.max_atoms} fit")
    kekulize(molecule)
    orders = Chem.GetAdjacencyMatrix(molecule, useBO=True)
    if not np.isin(orders, (0, 1, 2, 3)).all():
        raise EncodingError(Reason.UNSUPPORTED_BOND)
    nodes = np.zeros(vocabulary.max_atoms, np.uint8)
    edges = np.zeros((vocabulary.max_atoms, vocabulary.max_atoms), np.uint8)
    nodes[:num_atoms], edges[:num_atoms, :num_atoms] = classes, orders
    return nodes, edges


def encode_all(
    smiles: Sequence[str],
    vocabulary: Vocabulary,
    *,
    on_bad: Callable[[int, EncodingError], None],
    workers: int | None = None,
    name: str = "molecules",
) -> Encoded:
    """Encodes SMILES with all cores (or `workers` processes) and a progress bar, which shows `name`.

    Calls `on_bad(position, error)` for every SMILES that cannot be encoded, in order, and leaves that molecule out.
    An exception of `on_bad` ends the encoding.
    """
    size = vocabulary.max_atoms
    nodes = np.zeros((len(smiles), size), np.uint8)
    edges = np.zeros((len(smiles), size, size), np.uint8)
    published: list[str] = []
    canonical: list[str] = []
    with item_progress() as progress, WorkerPool(workers) as pool:
        bar = progress.add_task(f"encoding {name}", total=len(smiles))
        for start, (chunk, bad) in _in_order(pool, smiles, encode_chunk, vocabulary):
            for position, error in bad:
                on_bad(start + position, error)
            rows = slice(len(published), len(published) + len(chunk.published))
            nodes[rows], edges[rows] = chunk.nodes, chunk.edges
            published += chunk.published
            canonical += chunk.canonical
            progress.advance(bar, len(chunk.published) + len(bad))
    return Encoded(nodes[: len(published)], edges[: len(published)], published, canonical)


def quiet() -> None:
    """Keeps RDKit's messages about a molecule from the terminal."""
    RDLogger.DisableLog("rdApp.*")  # pyright: ignore[reportAttributeAccessIssue]


def in_chunks(
    smiles: Sequence[str], function: Callable[[list[str], T], R], argument: T, workers: int | None = None
) -> Iterator[tuple[int, R]]:
    """Yields the start and result of each chunk, from worker processes; of a single chunk without starting any."""
    if len(smiles) <= CHUNK:
        yield 0, function(list(smiles), argument)
        return
    with WorkerPool(workers) as pool:
        yield from _in_order(pool, smiles, function, argument)


def _in_order(
    pool: WorkerPool, smiles: Sequence[str], function: Callable[[list[str], T], R], argument: T
) -> Iterator[tuple[int, R]]:
    """Yields the start and result of each chunk; only a few are in flight at a time, which bounds the memory."""
    starts = iter(range(0, len(smiles), CHUNK))
    in_flight: deque[tuple[int, Future[R]]] = deque()

    def submit(count: int) -> None:
        for start in islice(starts, count):
            in_flight.append((start, pool.submit(function, list(smiles[start : start + CHUNK]), argument)))

    submit(4 * pool.workers)
    while in_flight:
        start, future = in_flight.popleft()
        yield start, future.result()
        submit(1)


def encode_chunk(smiles: list[str], vocabulary: Vocabulary) -> tuple[Encoded, list[tuple[int, EncodingError]]]:
    """Encodes one chunk in a worker; returns the encoded molecules, and (position, error) of the others."""
    quiet()
    graphs: list[tuple[Nodes, Edges]] = []
    bad: list[tuple[int, EncodingError]] = []
    for position, text in enumerate(smiles):
        try:
            graphs.append(encode(text, vocabulary))
        except EncodingError as error:
            bad.append((position, error))
    size = vocabulary.max_atoms
    molecules = [build_molecule(*graph, vocabulary) for graph in graphs]
    encoded = Encoded(
        nodes=np.array([nodes for nodes, _ in graphs], np.uint8).reshape(-1, size),
        edges=np.array([edges for _, edges in graphs], np.uint8).reshape(-1, size, size),
        published=[published_smiles(*graph, vocabulary) for graph in graphs],
        canonical=[canonical_smiles(molecule) if molecule else "" for molecule in molecules],
    )
    return encoded, bad
