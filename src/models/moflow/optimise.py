"""Property optimisation (arXiv:2006.10137): the latent moves along the gradient of a regressor of the property."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from src.errors import UserError
from src.gpu.exact_products import exact_products
from src.models.moflow.judge import training_molecules
from src.models.moflow.network import Edges, MoFlow, Nodes
from src.molecules.encode import EncodingError, encode
from src.molecules.score import Scorer, smiles_of
from src.molecules.standardise import encoded_as
from src.molecules.vocabulary import Vocabulary
from src.printable import printable
from src.system.progress import item_progress
from src.training.prediction import PredictionJob

KEY = "model.predict.optimise"
PROPERTIES = {"qed": "QED", "plogp": "penalised logP"}
Goal = Literal["qed", "plogp"]
LEAST_MOLECULES = 20  # to fit a regressor to nine tenths of them
HELD_OUT, RIDGE = 0.1, 0.01  # shares of the encoded molecules: not fitted; the penalty on squared weights
WALKS = 16  # from each start
SHARES = (0.5, 0.2, 0.1)  # of the coordinates that a walk changes; the first walk changes all
NEAREST, FARTHEST = 0.2, 5.0  # root mean square of a step, in standard deviations of the latents

Latents = Float[Tensor, "molecules dims"]


@dataclass(frozen=True)
class Plan:
    """Options of conf/model/moflow.yaml, `predict.optimise*`, after `checked_plan`."""

    goal: str  # a key of PROPERTIES
    starts: int | tuple[str, ...]  # training molecules at either end of the property, or SMILES
    molecules: int  # training molecules to encode
    steps: int  # lengths of steps in each direction
    deltas: tuple[float, ...]  # least similarities, ascending


class Start(NamedTuple):
    """A molecule to start from; `group` is lowest, highest (training molecules by their value) or given."""

    group: str
    smiles: str
    value: float


class Found(NamedTuple):
    """A molecule found on the way from `start`, and its similarity to that."""

    start: Start
    smiles: str
    value: float
    similarity: float


class Regressor(NamedTuple):
    """A linear regressor of a property: `latent @ weight + bias`. `r2` is of held-out molecules.

    `deviation` is the latents' standard deviation, the unit of steps.
    """

    weight: Float[Tensor, " dims"]
    bias: Float[Tensor, ""]
    r2: float
    deviation: float

    def __call__(self, latents: Latents) -> Float[Tensor, " molecules"]:
        return latents @ self.weight + self.bias


class Optimised(NamedTuple):
    """All starts, everything found from them, the regressor's R2, and canonical SMILES of the training molecules."""

    starts: list[Start]
    found: list[Found]
    r2: float
    train: frozenset[str]


def checked_plan(
    goal: Goal, starts: int | Sequence[str], molecules: int, steps: int, similarity: float | Sequence[float]
) -> Plan:
    """Returns the plan of these options. Raises UserError for an empty list."""
    deltas = tuple(sorted(set(similarity))) if isinstance(similarity, Sequence) else (similarity,)
    if not starts or not deltas:
        raise UserError(f"{KEY}_starts={starts} and {KEY}_similarity={list(deltas)}: give one at least of each")
    return Plan(goal, starts if isinstance(starts, int) else tuple(starts), molecules, steps, deltas)


def given_starts(smiles: Sequence[str], vocabulary: Vocabulary) -> tuple[list[str], Nodes, Edges]:
    """Returns these molecules as canonical SMILES and as the network's input. Raises UserError for an invalid one."""
    graphs = []
    for text in smiles:
        try:
            graphs.append(encode(text, vocabulary))
        except EncodingError as error:
            raise UserError(f"{KEY}_starts: {text!r} {error}; give another molecule") from None
    nodes, edges = np.stack([nodes for nodes, _ in graphs]), np.stack([edges for _, edges in graphs])
    place = {}
    for i, (text, built) in enumerate(zip(smiles, smiles_of(nodes, edges, vocabulary, False), strict=True)):
        if built is None:
            raise UserError(f"{KEY}_starts: {text!r} is invalid without its charges; give another molecule")
        if encoded_as(text, nodes[i], edges[i], vocabulary) is not None:
            print(printable(f"note: {KEY}_starts: {text!r} is encoded as {built!r}"))
        place.setdefault(built, i)  # once, where it is given twice
    chosen = list(place.values())
    return list(place), torch.from_numpy(nodes[chosen]), torch.from_numpy(edges[chosen])


class Search:
    """One optimisation, as planned; `given` is what `given_starts` returns, or None."""

    def __init__(self, plan: Plan, job: PredictionJob, vocabulary: Vocabulary) -> None:
        self.plan, self.batch_size = plan, job.batch_size
        self.given = None if isinstance(plan.starts, int) else given_starts(plan.starts, vocabulary)
        self.data = training_molecules(job, vocabulary, KEY, LEAST_MOLECULES)

    def run(self, network: MoFlow, scorer: Scorer, correct_validity: bool) -> Optimised:
        """Returns what was found. Computes in full float32, with the network in evaluation mode."""
        with exact_products(network.ln_var.device), item_progress() as progress:
            regressor, (starts, nodes, edges) = self._fitted(network, scorer)
            bar = progress.add_task(f"optimising {self.plan.goal}", total=len(starts))
            pending = []
            for latent in encoded(network, nodes, edges, self.batch_size):
                points = walk(latent, regressor, self.plan.steps)
                pending.append(scorer.build(*decoded(network, points, self.batch_size), correct_validity))
                progress.advance(bar)
            built = [
                sorted({*filter(None, future.result())} - {start.smiles})
                for future, start in zip(pending, starts, strict=True)
            ]
        pairs = [(start, text) for start, texts in zip(starts, built, strict=True) for text in texts]
        distinct = sorted({text for _, text in pairs})
        values = dict(zip(distinct, self._values(scorer, distinct), strict=True))
        similarities = scorer.similarities([(start.smiles, text) for start, text in pairs]).result()
        molecules = [Found(*pair, values[pair[1]], alike) for pair, alike in zip(pairs, similarities, strict=True)]
        return Optimised(starts, molecules, regressor.r2, self.data.train_canonical)

    def _fitted(self, network: MoFlow, scorer: Scorer) -> tuple[Regressor, tuple[list[Start], Nodes, Edges]]:
        """Returns the regressor of a random sample of training molecules, and the starts with their graphs."""
        rows = np.random.default_rng(0).permutation(self.data.train_index)[: self.plan.molecules]
        row_of = {self.data.canonical[row]: row for row in rows}  # without stereo, some molecules are there twice
        row_of.pop("", None)
        smiles, rows = list(row_of), np.array([*row_of.values()])
        nodes, edges = (torch.from_numpy(array[rows]) for array in (self.data.nodes, self.data.edges))
        pending = scorer.properties(smiles)  # by the workers, during the encoding
        latents = encoded(network, nodes, edges, self.batch_size)
        values = np.array([getattr(properties, self.plan.goal) for properties in pending.result()], np.float32)
        regressor = fit(latents, torch.from_numpy(values).to(latents.device))
        if self.given is not None:
            texts, nodes, edges = self.given
            starts = [Start("given", *pair) for pair in zip(texts, self._values(scorer, texts), strict=True)]
            return regressor, (starts, nodes, edges)
        assert isinstance(self.plan.starts, int)
        order = np.argsort(values, kind="stable")
        ends = {"lowest": order[: self.plan.starts], "highest": order[::-1][: self.plan.starts]}
        starts = [Start(group, smiles[i], float(values[i])) for group, chosen in ends.items() for i in chosen]
        chosen = torch.from_numpy(np.concatenate([*ends.values()]))
        return regressor, (starts, nodes[chosen], edges[chosen])

    def _values(self, scorer: Scorer, smiles: Sequence[str]) -> list[float]:
        return [getattr(properties, self.plan.goal) for properties in scorer.properties(smiles).result()]


def encoded(network: MoFlow, nodes: Nodes, edges: Edges, batch_size: int) -> Latents:
    """Returns each molecule's latent as a vector: the atoms', then the bonds'."""
    device, parts = network.ln_var.device, []
    for some_nodes, some_edges in zip(nodes.split(batch_size), edges.split(batch_size), strict=True):
        latent = network.encode(some_nodes.to(device), some_edges.to(device))
        parts.append(torch.cat([latent.z_atom.flatten(1), latent.z_bond.flatten(1)], 1).float())
    return torch.cat(parts)


def decoded(network: MoFlow, latents: Latents, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns nodes and edges of the distinct graphs at these latents, on the host."""
    atoms, kinds = (network.num_nodes, network.num_atom_classes), network.num_bond_classes
    parts = []
    for part in latents.to(network.ln_var.dtype).split(batch_size):
        z_atom, z_bond = part.tensor_split([atoms[0] * atoms[1]], 1)
        parts.append(network.decode(z_atom.unflatten(1, atoms), z_bond.unflatten(1, (kinds, atoms[0], atoms[0]))))
    flat = torch.cat([torch.cat([nodes, edges.flatten(1)], 1) for nodes, edges in parts]).cpu().numpy()
    nodes, edges = np.split(np.unique(flat, axis=0), [network.max_atoms], 1)
    return nodes, edges.reshape(-1, network.max_atoms, network.max_atoms)


def fit(latents: Latents, values: Float[Tensor, " molecules"]) -> Regressor:
    """Returns ridge regression on the first molecules; the last tenth is held out."""
    fitted = len(values) - max(1, round(HELD_OUT * len(values)))
    mean, centre = values[:fitted].mean(), latents[:fitted].mean(0)
    inputs = latents[:fitted] - centre
    products = (inputs.T @ inputs).double()
    products.diagonal().add_(RIDGE * fitted)
    weight = torch.linalg.solve(products, (inputs.T @ (values[:fitted] - mean)).double()).float()
    regressor = Regressor(weight, mean - centre @ weight, 0.0, float(inputs.square().mean().sqrt()))
    held_out = values[fitted:]
    errors, spread = held_out - regressor(latents[fitted:]), held_out - held_out.mean()
    return regressor._replace(r2=float(1 - errors.square().sum() / spread.square().sum().clamp_min(1e-12)))


def walk(latent: Float[Tensor, " dims"], regressor: Regressor, steps: int) -> Float[Tensor, "points dims"]:
    """Returns latents along the gradient: all of it, then of random coordinates, so that more molecules are found."""
    shares = torch.tensor([1.0, *(SHARES[i % len(SHARES)] for i in range(WALKS - 1))], device=latent.device)
    kept = torch.rand(WALKS, len(latent), device=latent.device) < shares[:, None]
    scale = regressor.deviation / regressor.weight.square().mean().sqrt().clamp_min(1e-12)
    lengths = torch.from_numpy(np.geomspace(FARTHEST, NEAREST, steps, dtype=np.float32)).to(latent.device)
    return (latent + lengths[:, None, None] * (kept * regressor.weight * scale)).flatten(0, 1)
