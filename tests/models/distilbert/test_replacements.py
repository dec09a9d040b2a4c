"""DistilBERT's fast modules in the place of its plain ones. Imports no Triton itself: a test of the contract asks."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.batches.tokens import PaddedTokens
from src.models.distilbert import DistilBert, Sizes, fast
from tests.support.kernels_contract import KernelsContract

SIZES = Sizes(vocab_size=40, max_position_embeddings=20, dim=24, n_layers=2, n_heads=3, hidden_dim=40)


class TestReplacements(KernelsContract):
    replacements = fast.REPLACEMENTS

    def network(self) -> DistilBert:
        torch.manual_seed(0)
        network = DistilBert(SIZES, dropout=0.0, attention_dropout=0.0, head_dropout=0.0)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        return network

    def loss(self, network: nn.Module, dtype: torch.dtype) -> Tensor:
        ids, lengths = torch.arange(1, 22, dtype=torch.int32).view(3, 7), torch.tensor([7, 3, 5], dtype=torch.int32)
        ids[torch.arange(7) >= lengths[:, None]] = 0
        batch = PaddedTokens(ids, lengths, torch.tensor([0, 1, 1]))
        return F.cross_entropy(cast(DistilBert, network)(batch), batch.labels)
