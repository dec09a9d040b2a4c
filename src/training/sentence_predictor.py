"""Probabilities of labels of sentences."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from src.datamodules.text.texts import TextDataModule
from src.training.predictor import Classes, Inference, Predictor


class SentencePredictor(Predictor[str | Sequence[str], Classes]):
    """Called with sentences it returns the probability of each label; long ones are truncated as in training.

    Args:
        network, datamodule: on one device, and bound to each other.
    """

    def __init__(
        self, network: nn.Module, datamodule: TextDataModule, device: torch.device, inference: Inference
    ) -> None:
        super().__init__(device, inference)
        self.network, self.datamodule = network, datamodule
        self.label_names = list(datamodule.label_names)

    def predicted(self, inputs: str | Sequence[str]) -> Classes:
        sentences = [inputs] if isinstance(inputs, str) else list(inputs)
        tokens = self.datamodule.encode(sentences, "the input")
        loader = self.datamodule.loader(tokens, batch_size=self.inference.batch_size)
        shares = [self.network(batch).float().softmax(1).cpu().numpy() for batch in loader]
        return Classes(self.label_names, np.concatenate(shares))
