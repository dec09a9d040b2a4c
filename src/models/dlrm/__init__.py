"""DLRM: click-through rates from numerical features and embedding tables.

Usable without Lightning and Hydra:

    network = DLRM(tables)
    loss_of(network(clicks)).backward()
    network.embeddings.update(rate)  # updates the tables; give network.dense_parameters() to an optimiser
"""

from src.models.dlrm.embeddings import Embeddings, PlainEmbeddings
from src.models.dlrm.network import DLRM

__all__ = ["DLRM", "Embeddings", "PlainEmbeddings"]
