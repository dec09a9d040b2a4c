"""DLRM's feature interactions against loops and against TorchRec's cross layers."""

import pytest
import torch
from torch import nn

from src.batches.clicks import EmbeddingTable
from src.models.dlrm import interaction
from src.models.dlrm.embeddings import PlainEmbeddings
from src.models.dlrm.network import CrossNet


def test_products_are_the_lower_triangle_row_by_row() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(3, 5, 7, dtype=torch.float64)
    expected = [[float(v[i] @ v[j]) for i in range(5) for j in range(i)] for v in vectors]
    torch.testing.assert_close(interaction.dot(vectors), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("tables", "dim", "width", "features"), [(26, 128, 479, 480), (3, 2, 8, 8), (1, 4, 5, 8)])
def test_dot_features_are_padded_to_rows_of_16_bytes(tables: int, dim: int, width: int, features: int) -> None:
    torch.manual_seed(0)
    dense, sparse = torch.randn(2, dim), torch.randn(2, tables, dim)
    result = interaction.dot_features(dense, sparse)
    assert result.shape == (2, features)
    assert torch.equal(result[:, :dim], dense)
    assert torch.equal(result[:, dim:width], interaction.dot(torch.cat([dense[:, None], sparse], 1)))
    assert not result[:, width:].any()


def test_cat_features_are_the_concatenated_vectors() -> None:
    dense, sparse = torch.tensor([[1.0, 2.0]]), torch.tensor([[[3.0, 4.0], [5.0, 6.0]]])
    assert interaction.cat_features(dense, sparse).tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]


def test_cross_layers_equal_torchrecs() -> None:
    from torchrec.modules.crossnet import LowRankCrossNet

    torch.manual_seed(0)
    ours = CrossNet(num_tables=3, dim=4, num_layers=3, rank=5).double()
    theirs = LowRankCrossNet(in_features=16, num_layers=3, low_rank=5).double()
    with torch.no_grad():
        for number, (down, up) in enumerate(ours.layers()):
            nn.init.normal_(up.bias)
            theirs.V_kernels[number].copy_(down.weight)
            theirs.W_kernels[number].copy_(up.weight)
            theirs.bias[number].copy_(up.bias)
    dense, sparse = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 3, 4, dtype=torch.float64)
    tables = PlainEmbeddings([EmbeddingTable("cat_0.bin", 1)], 1)
    torch.testing.assert_close(ours(dense, sparse, tables), theirs(torch.cat([dense, sparse.flatten(1)], 1)))
