"""Views that cannot be differentiated any more, because the memory that they are views of was changed in place.

Of some views autograd does not follow changes: of one of several results (`unbind`, `split`), and of those made without gradients. When their
base is changed, their numbers change, and from then on whoever asks for their history hears an error of torch's. Functionalization
would let it pass. So each call with such a view is first tried on small tensors that are spoiled in the same way, and torch raises what it raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch.autograd.graph import increment_version

from foldloom.pytrees import flatten, unflatten
from foldloom.tracing.mutation.trial import model_of
from foldloom.tracing.mutation.views import DATA, Unbound, Views, root_of
from foldloom.tracing.scope import ActiveRecorder, recording_paused
from foldloom.tracing.values.lazy_tensor import Form, Given, LazyTensor, new_handle


class Spoiled(Given):
    """Stands for the recorder in handles of such views."""

    __slots__ = ("had_history",)

    def __init__(self, recorder: ActiveRecorder, had_history: bool) -> None:
        super().__init__(recorder)
        self.had_history = had_history
        """Whether its base required grad when it was made."""

    def device_of(self, handle: LazyTensor) -> torch.device:
        return self.recorder.device_of(handle)

    def requires_grad_of(self, handle: LazyTensor) -> bool:
        return True

    def tensor_given_as(self, handle: LazyTensor) -> NoReturn:
        """Asked for `is_leaf` and `grad_fn`."""
        raise error_of(handle)

    def grad_of(self, handle: LazyTensor) -> None:
        return None

    def rows_of(self, handle: LazyTensor) -> list[LazyTensor]:
        return list(self.recorder.call_function(torch.unbind, (handle,), None))

    def demand(self, handles: Sequence[LazyTensor], form: Form) -> list[Any]:
        return self.recorder.demand([numbers_of(handle) for handle in handles], form)


class SpoiledResult:
    """Gives back a result that is such a view."""

    def __init__(self, handle: LazyTensor) -> None:
        self.handle = handle

    def belongs_to(self, result: torch.Tensor) -> torch.Tensor:
        """A tensor of these numbers that is spoiled, too."""
        return as_tensor(self.handle, result)


def raise_if_spoiled(known: Sequence[Any]) -> None:
    """Results are stacked, which asks for their histories."""
    for result in known:
        if isinstance(result, SpoiledResult):
            raise error_of(result.handle)


def as_tensor(handle: LazyTensor, numbers: torch.Tensor) -> torch.Tensor:
    """A tensor of these numbers that is spoiled as the view is."""
    with recording_paused():
        model = _model_of(handle)
        if model is None:
            raise error_of(handle)
        model.data = numbers.detach()
        return model


def numbers_of(handle: LazyTensor) -> LazyTensor:
    """A spoiled view as a value without a past."""
    return new_handle(handle._recorder.recorder, handle._value, handle._type, handle._depth)


# ---- What is spoiled by a change.


class Kept:
    """The views of one value of which autograd follows no changes, before the value is changed."""

    def __init__(self, recorder: Any, target: LazyTensor) -> None:
        self._recorder = recorder
        views = views_below(root_of(target, through_data=False)) if recorder.has_gradients else ()
        self._found = [(view, _had_history(view)) for view in views if _is_kept_from_changes(view)]

    def spoil(self) -> None:
        """The value has been changed."""
        recorder = self._recorder
        for view, had_history in self._found:
            if view._recorder is recorder and _base_of(view).requires_grad:
                with recording_paused():
                    model = _spoiled_model(view, had_history)
                    if model is not None and _error_of(model) is None:
                        continue  # one of several results of a function that makes each by itself, `tensor_split` say
                view._recorder = Spoiled(recorder, had_history)
                recorder.has_spoiled = True


def _had_history(view: LazyTensor) -> bool:
    recorder = view._recorder
    return recorder.had_history if type(recorder) is Spoiled else view.requires_grad


def views_below(base: LazyTensor) -> Iterator[LazyTensor]:
    """The views of a value that are in use, and the views of these. What `x.data` returns has a version of its own."""
    for reference in getattr(base, "_views", ()):
        found = reference()
        if type(found) is LazyTensor:
            yield found
            yield from views_below(found)
        elif found is not None and found.function is not DATA:
            for view, _ in found.in_use():
                yield view
                yield from views_below(view)


def _sources_of(view: LazyTensor) -> Iterator[tuple[Any, Any]]:
    """From a view to its base, for autograd: what `detach` returns is a base of its own."""
    while True:
        source, place = getattr(view, "_source", (None, None))
        if type(source) is LazyTensor:
            yield source, place
            view = source
        elif type(source) is Views and not source.is_alias:
            yield source, place
            view = source.base
        else:
            return


def _is_kept_from_changes(view: LazyTensor) -> bool:
    return any(
        place is not None or not source.grad_enabled if type(source) is Views else isinstance(place, Unbound)
        for source, place in _sources_of(view)
    )


def _base_of(view: LazyTensor) -> LazyTensor:
    base = view
    for source, _ in _sources_of(view):
        base = source.base if type(source) is Views else source
    return base


# ---- Who uses it.


def spoiled_among(args: Sequence[Any], kwargs: dict[str, Any]) -> list[LazyTensor]:
    leaves: list[Any] = []
    flatten((tuple(args), kwargs), leaves)
    return [leaf for leaf in leaves if type(leaf) is LazyTensor and type(leaf._recorder) is Spoiled]


def check_use(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise what torch raises for a call with such views among its arguments. Many calls do not ask for histories."""
    leaves: list[Any] = []
    nesting = flatten((tuple(args), kwargs), leaves)
    models: list[Any] = []
    with recording_paused(), torch.random.fork_rng(devices=()):
        for leaf in leaves:
            if type(leaf) is not LazyTensor:
                models.append(leaf)
            elif type(leaf._recorder) is not Spoiled:
                models.append(torch.zeros(leaf.shape, dtype=leaf.dtype))
            else:
                model = _model_of(leaf)
                if model is None and torch.is_grad_enabled():
                    raise error_of(leaf)
                models.append(model)
        with suppress(_OtherError):
            _call(function, *unflatten(nesting, iter(models)))


class _OtherError(Exception):
    """What a call on zeros raises for other reasons: they depend on numbers, or the call itself raises the same."""


def _call(function: Any, args: Any, kwargs: Any) -> None:
    try:
        function(*args, **kwargs)
    except Exception as error:
        if isinstance(error, RuntimeError) and "another view of its base has been modified inplace" in str(error):
            raise
        raise _OtherError from error


def error_of(handle: LazyTensor) -> RuntimeError:
    """What torch raises when it is asked for the history."""
    with recording_paused():
        model = _model_of(handle)
        error = None if model is None else _error_of(model)
    return error or RuntimeError(
        "a view cannot be differentiated any more, because its base or another view of its base has been modified inplace. Change a copy "
        "of the base (`x = x.clone()`)"
    )


def _error_of(model: torch.Tensor) -> RuntimeError | None:
    try:
        _ = model.grad_fn
    except RuntimeError as error:
        return error
    return None


def _model_of(handle: LazyTensor) -> torch.Tensor | None:
    return _spoiled_model(handle, handle._recorder.had_history)


def _spoiled_model(handle: LazyTensor, had_history: bool) -> torch.Tensor | None:
    """Zeros, as a view of a base that was changed in the same way; None if the view depends on numbers."""
    base = _base_of(handle)
    memory = torch.zeros(base.shape, dtype=base.dtype)
    with torch.enable_grad():
        if had_history:
            memory = memory.requires_grad_().clone()
        try:
            model = model_of(handle, {id(base): memory})
        except Exception:  # a view that depends on numbers
            return None
        if had_history:
            increment_version(memory)
        else:
            memory.add_(torch.zeros((), dtype=memory.dtype, requires_grad=True))
    return model
