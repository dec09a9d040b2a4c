"""DistilBERT: classes of sentences, padded or packed.

Usable without Lightning and Hydra:

    network = DistilBert()
    logits = network(PackedTokens(...))
"""

from src.models.distilbert.network import DistilBert, Sizes

__all__ = ["DistilBert", "Sizes"]
