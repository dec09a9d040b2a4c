"""Molecules drawn from the flow, and how likely given ones are."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from src.errors import UserError
from src.models.moflow.network import MoFlow
from src.models.moflow.temperatures import Given, Temperature, temperature_of
from src.molecules.encode import EncodingError, encode
from src.molecules.score import smiles_of
from src.molecules.vocabulary import Vocabulary
from src.training.predictor import Inference, Predictor, in_precision


class MoleculeGenerator(Predictor[int, list[str | None]]):
    """Called with a number it draws as many molecules and returns their SMILES, None for one that is not valid.

    Args:
        temperature, correct_validity: those of the training, where a call gives none.
    """

    network: MoFlow

    def __init__(
        self,
        network: MoFlow,
        vocabulary: Vocabulary,
        temperature: Temperature,
        correct_validity: bool,
        device: torch.device,
        inference: Inference,
    ) -> None:
        super().__init__(device, inference)
        self.network, self.vocabulary = network, vocabulary
        self.temperature, self.correct_validity = temperature, correct_validity

    def predicted(self, inputs: int) -> list[str | None]:
        return self.sample(inputs)

    def sample(
        self,
        count: int,
        temperature: Given | None = None,
        correct_validity: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> list[str | None]:
        """Returns the SMILES of `count` molecules, None for one that is not valid.

        Args:
            temperature: of the latents, one or that of atoms and that of bonds.
            correct_validity: cut bonds off until every molecule is valid.
            generator: of the random numbers, on the network's device.
        """
        heat = self.temperature if temperature is None else temperature_of(temperature)
        correct = self.correct_validity if correct_validity is None else correct_validity
        smiles: list[str | None] = []
        with in_precision(self.device, self.inference.precision):
            while len(smiles) < count:
                size = min(self.inference.batch_size, count - len(smiles))
                nodes, edges = (part.cpu().numpy() for part in self.network.sample(size, heat, generator))
                smiles += smiles_of(nodes, edges, self.vocabulary, correct)
        return smiles

    def likelihood(self, smiles: str | Sequence[str]) -> Float[np.ndarray, "molecules 2"]:
        """Returns bits per dimension of each molecule's atoms and bonds, with the noise of training.

        Raises UserError for SMILES that the network's arrays cannot hold.
        """
        parts = []
        for text in [smiles] if isinstance(smiles, str) else smiles:
            try:
                arrays = encode(text, self.vocabulary)
            except EncodingError as error:
                raise UserError(f"{text!r} {error}; give another molecule") from None
            nodes, edges = (torch.from_numpy(array)[None].to(self.device) for array in arrays)
            with in_precision(self.device, self.inference.precision):
                parts.append(torch.stack(self.network.likelihood(nodes, edges)).double().cpu().numpy())
        return np.stack(parts) if parts else np.zeros((0, 2))
