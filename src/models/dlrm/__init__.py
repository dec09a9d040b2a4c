"""DLRM: click-through rates from numerical features and embedding tables.

Everything here is plain torch:

    network = DLRM(tables)
    loss_of(network(clicks)).backward()
    network.embeddings.update(rate)  # the tables; an optimiser of your choice does network.dense_parameters()
"""

from src.models.dlrm.embeddings import Embeddings, PlainEmbeddings
from src.models.dlrm.network import DLRM

__all__ = ["DLRM", "Embeddings", "PlainEmbeddings"]
