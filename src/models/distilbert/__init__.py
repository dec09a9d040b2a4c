"""DistilBERT: classes of sentences, padded or packed.

Everything here is plain torch:

    network = DistilBert()
    logits = network(PackedTokens(...))
"""

from src.models.distilbert.network import DistilBert, Sizes

__all__ = ["DistilBert", "Sizes"]
