"""The networks."""

from src.dropin.model.transformer import SE3Transformer, SE3TransformerPooled

__all__ = ["SE3Transformer", "SE3TransformerPooled"]
