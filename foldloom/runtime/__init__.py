"""Runs files that `fl.export` wrote. Needs numpy and ONNX Runtime, and no torch."""

from foldloom.runtime.model import Model

__all__ = ["Model"]
