"""`fl.show`: what will be batched, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foldloom.planning.schedulers import Scheduler
from foldloom.views.asking import survey_of
from foldloom.views.page import Page, page_of


def show(target: Any, *columns: Sequence[Any], scheduler: Scheduler | None = None, title: str | None = None) -> Page:
    """The examples as graphs, coloured by the step that each node runs in, beside the schedule: one page that needs no network.

    Takes what `explain` takes. The page shows itself in a notebook; `page.save(path)` and `page.open()` do elsewhere.

    >>> import torch, foldloom as fl
    >>> page = fl.show(lambda x: x * 2, [torch.ones(2), torch.zeros(2)])
    >>> "<html" in page.html
    True
    """
    return page_of(survey_of(target, columns, scheduler), title or _name_of(target))


def _name_of(target: Any) -> str:
    function = getattr(target, "function", target)
    return getattr(function, "__name__", type(function).__name__)
