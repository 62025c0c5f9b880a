"""Results that share memory: `return y, y[1:]`, or a view of what was given. In a batch each value has a row of its own, so views are taken anew of what they
are views of, once that is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from foldloom.execution.backward.dead_ends import view_without_gradient
from foldloom.pytrees import flatten
from foldloom.tracing.mutation.views import Unbound, Views, as_inference, is_of_inference
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.values.lazy_tensor import LazyTensor, is_cut

Way = Callable[[torch.Tensor], torch.Tensor]


class BaseResult:
    """A result of which others are views, and who else wants to know it."""

    comes_last = False

    def __init__(self, known: Any) -> None:
        self._known = known
        self.tensor: torch.Tensor | None = None

    def belongs_to(self, result: torch.Tensor) -> torch.Tensor:
        self.tensor = result if self._known is None else self._known.belongs_to(result)
        return self.tensor


class ViewResult:
    """A result that is a view of another, or of a tensor of the user's."""

    comes_last = True

    def __init__(self, base: BaseResult | torch.Tensor, way: Sequence[Way]) -> None:
        self._base = base
        self._way = way

    def belongs_to(self, result: torch.Tensor) -> torch.Tensor:
        base = self._base if isinstance(self._base, torch.Tensor) else self._base.tensor
        assert base is not None, "views come after what they are views of"
        for step in self._way:
            base = step(base)
        return base if base.requires_grad == result.requires_grad else base.detach()


def noting_views(recorder: Recorder, outputs: Sequence[LazyTensor], known: Sequence[Any]) -> list[Any]:
    """What is known of outputs, with those that are views of others."""
    if not any(isinstance(getattr(output, "_source", (None,))[0], (LazyTensor, Views)) for output in outputs):
        return list(known)
    found = list(known)
    ways = [None if of is not None else _way(output, outputs) for output, of in zip(outputs, known, strict=True)]
    bases: dict[int, BaseResult | torch.Tensor | None] = {}
    for way in ways:
        if way is not None and id(way[0]) not in bases:
            bases[id(way[0])] = recorder.tensor_given_as(way[0])
    for number, output in enumerate(outputs):
        if found[number] is None and is_cut(output):
            found[number] = CutResult()
        if id(output) in bases and bases[id(output)] is None:
            bases[id(output)] = found[number] = BaseResult(found[number])
    for number, way in enumerate(ways):
        base = None if way is None else bases[id(way[0])]
        # A view of a view that is a result, too: both are taken of what that is a view of.
        if way is not None and base is not None and not isinstance(found[number], BaseResult):
            found[number] = ViewResult(base, way[1])
    return found


def _way(handle: LazyTensor, outputs: Sequence[LazyTensor]) -> tuple[LazyTensor, list[Way]] | None:
    """The farthest output that a value is a view of, or what it is a view of in the end, and how it is taken of it. None if there is none."""
    steps: list[Way] = []
    results = {id(output) for output in outputs}
    best: tuple[LazyTensor, list[Way]] | None = None
    while isinstance(getattr(handle, "_source", (None,))[0], (LazyTensor, Views)):
        source, place = handle._source
        if type(source) is LazyTensor:
            steps.insert(0, _row(place))
            handle = source
        else:
            leaves: list[Any] = []
            flatten((source.args[1:], source.kwargs), leaves)
            is_fixed = not any(isinstance(arg, list) for arg in (*source.args, *source.kwargs.values()))
            if not is_fixed or not source.is_of_first or any(isinstance(leaf, torch.Tensor) for leaf in leaves):
                return best  # values take part in it, or a list, which may have changed
            steps.insert(0, _view(source, place))
            handle = source.base
        if id(handle) in results:
            best = handle, list(steps)
    is_given = bool(steps) and handle._recorder.tensor_given_as(handle) is not None
    return (handle, steps) if is_given else best


class CutResult:
    """A result that is a view made without gradients, of what requires grad and is no result."""

    comes_last = False

    def belongs_to(self, result: torch.Tensor) -> torch.Tensor:
        return view_without_gradient(result) if result.requires_grad else result


class InferenceResult:
    """A result that was computed in inference mode."""

    comes_last = False

    def belongs_to(self, result: torch.Tensor) -> torch.Tensor:
        return as_inference(result)


def noting_inference(recorder: Recorder, outputs: Sequence[LazyTensor], known: Sequence[Any]) -> list[Any]:
    """What is known of outputs, with those that torch would not let autograd see."""
    return [
        InferenceResult() if of is None and is_of_inference(recorder, output) else of
        for output, of in zip(outputs, known, strict=True)
    ]


def _row(place: Any) -> Way:
    return lambda tensor: tensor.unbind()[place] if isinstance(place, Unbound) else tensor[place]


def _view(views: Views, place: int | None) -> Way:
    function, args, kwargs, enabled = views.function, views.args[1:], views.kwargs, views.grad_enabled

    def take(tensor: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(enabled and torch.is_grad_enabled()):
            found = function(tensor, *args, **kwargs)
        return found if place is None else found[place]  # type: ignore[no-any-return]

    return take
