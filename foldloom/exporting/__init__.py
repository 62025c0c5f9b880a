"""Export: a model as one static graph, and the graph as a file."""

from foldloom.exporting.files import export
from foldloom.exporting.model import StaticBatch, StaticModel, static_model

__all__ = ["StaticBatch", "StaticModel", "export", "static_model"]
