"""MobileNetV1 (Howard et al. 2017) as gluon-cv trains it."""

from src.models.mobilenet_v1.network import MobileNetV1

__all__ = ["MobileNetV1"]
