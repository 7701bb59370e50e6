"""Keras 3 on its torch backend."""

from wellposed.frontends.keras.module import KerasModule

__all__ = ["KerasModule"]
