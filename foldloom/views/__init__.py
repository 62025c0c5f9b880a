"""Looking inside: what will be batched (`explain`), how that looks (`show`), and where the time goes (`profile`)."""

from foldloom.views.explaining import explain

__all__ = ["explain"]
