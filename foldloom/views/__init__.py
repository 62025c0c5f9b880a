"""Looking inside: what will be batched (`explain`), how that looks (`show`), and where the time goes (`profile`)."""

from foldloom.views.explaining import explain
from foldloom.views.page import Page
from foldloom.views.profiling import Profile, profile
from foldloom.views.showing import show

__all__ = ["Page", "Profile", "explain", "profile", "show"]
