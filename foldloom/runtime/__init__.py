"""Runs files that `fl.export` wrote, with numpy and ONNX Runtime. Needs no torch."""

from foldloom.runtime.limits import Limits
from foldloom.runtime.model import Model

__all__ = ["Limits", "Model"]
