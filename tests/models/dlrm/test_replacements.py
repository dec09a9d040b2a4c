"""DLRM's fast modules in the place of its plain ones. Imports no Triton itself: a test of the contract asks."""

from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.batches.clicks import Clicks, EmbeddingTable
from src.models.dlrm import DLRM, fast
from src.models.dlrm.network import Interaction
from tests.support.kernels_contract import KernelsContract

TABLES = [EmbeddingTable("cat_0.bin", 9), EmbeddingTable("cat_1.bin", 4, 2), EmbeddingTable("cat_2.bin", 30)]


class TestReplacements(KernelsContract):
    replacements = fast.REPLACEMENTS

    interaction: Interaction = "dot"
    tables = TABLES

    def network(self) -> DLRM:
        torch.manual_seed(0)
        return DLRM(
            self.tables, num_numerical=5, embedding_dim=16, bottom=[24, 16], top=[32, 16], interaction=self.interaction
        )

    def loss(self, network: nn.Module, dtype: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        numerical = torch.randn(11, 5, generator=generator)
        ids = [torch.randint(table.cardinality, (11 * table.hotness,), generator=generator) for table in self.tables]
        labels = torch.randint(2, (11,), generator=generator).float()
        clicks = Clicks(labels, numerical, torch.cat(ids).int())
        logits = cast(DLRM, network)(clicks)
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))

    def take_step(self, network: nn.Module) -> None:
        """The tables take theirs themselves."""
        super().take_step(network)
        cast(DLRM, network).embeddings.update(torch.tensor(0.1))


class TestOneIdOfEachTable(TestReplacements):
    """Whose rows the interaction reads itself."""

    tables = [table._replace(hotness=1) for table in TABLES]  # noqa: RUF012


class TestCrossLayers(TestReplacements):
    interaction = "dcnv2"

    def test_vectors_are_looked_up_into_the_features(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is concatenated, and the results stay the same."""
        network, without_room = (cast(DLRM, self.accelerated("auto")) for _ in range(2))
        without_room.interaction.room = 0
        expected = self.stepped(without_room, torch.float32)
        monkeypatch.setattr("src.models.dlrm.fast.cross.cat_features", None)
        with pytest.raises(TypeError, match="NoneType"):
            self.loss(without_room, torch.float32)
        for name, value in self.stepped(network, torch.float32).items():
            assert torch.equal(value, expected[name]), name
