"""Views: values that share memory with another.

Whether a function returns a view is found when the types of its results are inferred. Where it depends on the strides of the argument
(`reshape`), they are worked out: those of a view follow from its base, and what is computed is taken to be contiguous.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import is_grad_enabled

from foldloom.pytrees import flatten, unflatten
from foldloom.tracing.functions.calls import static
from foldloom.tracing.rules.base import forms
from foldloom.tracing.scope import recording_paused, unwatched
from foldloom.tracing.values.lazy_tensor import Given, LazyTensor, is_tensor, new_handle

MAY_COPY = frozenset(forms("reshape flatten ravel reshape_as contiguous"))
"""Functions that return a view of a contiguous tensor, and a copy of some others."""

VIEWS_OF_ROWS = frozenset([*forms("unsqueeze squeeze chunk split detach"), torch.Tensor.__getitem__])
"""Functions with rules for ragged values whose results share memory with them."""


DATA: Any = getattr(torch.Tensor.data, "__get__")  # noqa: B009
ALIASES = frozenset((torch.detach, torch.Tensor.detach, DATA))


class Unbound(int):
    """Which row of a value it is, where all rows were taken at once: autograd does not let such views be changed in place."""


class RowOfWeight(Given):
    """The source of values that stand for rows of a weight, beside a tensor with the strides of one: which row depends on the example."""

    __slots__ = ("places", "weight")

    def __init__(self, recorder: Any, weight: torch.Tensor, places: tuple[Any, ...]) -> None:
        super().__init__(recorder)
        self.weight = weight
        self.places = places


class ArrayCopy:
    """An array that a program has asked for, and that is a copy of a value, not its memory. The memory outlives the array, so that it can be
    told whether somebody wrote to it."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._memory = numbers.clone()
        self._before = numbers
        array = self._memory.numpy()
        self._array: weakref.ref[Any] = weakref.ref(array)
        self.array: Any = array
        """Until it has been handed out."""

    def hand_out(self) -> Any:
        array, self.array = self.array, None
        return array

    @property
    def is_in_use(self) -> bool:
        return self._array() is not None

    @property
    def is_written(self) -> bool:
        return self._memory.numpy().tobytes() != self._before.numpy().tobytes()


class Borrowed(Given):
    """The source of values that share memory with what is computed, which cannot be changed in place: some because of arrays, until nobody
    uses these any longer."""

    __slots__ = ("arrays",)

    def __init__(self, recorder: Any, arrays: list[ArrayCopy] | None = None) -> None:
        super().__init__(recorder)
        self.arrays = arrays

    @property
    def is_free(self) -> bool:
        """Whether it can be changed again."""
        return self.arrays is not None and not any(copy.is_in_use or copy.is_written for copy in self.arrays)


class Views:
    """The results of one call that are views of one of its arguments. The views hold it; it keeps none of them alive."""

    __slots__ = ("__weakref__", "_views", "args", "base", "function", "grad_enabled", "kwargs")

    def __init__(
        self,
        base: LazyTensor,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        views: Sequence[LazyTensor],
        grad_enabled: bool,
    ) -> None:
        self.base = base
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.grad_enabled = grad_enabled
        self._views = [weakref.ref(view) for view in views]

    @property
    def is_of_first(self) -> bool:
        return bool(self.args) and self.args[0] is self.base

    @property
    def is_alias(self) -> bool:
        """Whether they are the same tensor without its history."""
        return self.function in ALIASES

    def move(self, base: LazyTensor) -> None:
        """Make these the views of another handle, which stands for the same memory."""
        self.args = tuple([base if arg is self.base else arg for arg in self.args])
        self.base = base

    def exchange(self, view: LazyTensor, other: LazyTensor) -> None:
        """Another handle takes the place of one of the views."""
        self._views = [weakref.ref(other) if found() is view else found for found in self._views]

    def leave(self, view: LazyTensor) -> None:
        self._views = [found for found in self._views if found() is not view]

    def in_use(self) -> list[tuple[LazyTensor, int | None]]:
        """The views that are still alive, and which of the call's results each is."""
        alive = [view for found in self._views if (view := found()) is not None]
        return [(view, view._source[1]) for view in alive]


def note_views(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, base: LazyTensor) -> None:
    """Note that the results of a call are views of one of its arguments, if they are."""
    views = (result,) if type(result) is LazyTensor else result
    if function in MAY_COPY and hasattr(base, "_source") and not shares_memory(function, base, args[1:], kwargs):
        _note_copy(result._recorder, result)
        return
    group = Views(base, function, args, kwargs, views, is_grad_enabled())
    for number, view in enumerate(views):
        view._source = (group, None if view is result else number)
    _add(base, weakref.ref(group))


def _note_copy(recorder: Any, result: LazyTensor) -> None:
    """What could have been a view is a copy. Made without gradients, it has no history."""
    if result.requires_grad and not is_grad_enabled():
        plain = recorder.call_function(torch.Tensor.detach, (result,), None)
        result._value, result._type, result._depth = plain._value, plain._type, plain._depth
    recorder.graph.copies.add(_first_value(result))


def _first_value(handle: LazyTensor) -> int:
    return handle._value[0] if handle._type.ragged else handle._value  # type: ignore[no-any-return]


def root_of(handle: LazyTensor, *, through_data: bool = True) -> LazyTensor:
    """The value that a view is a view of, in the end. What ``x.data`` returns shares memory with x, and autograd takes it for another tensor."""
    while True:
        group = getattr(handle, "_source", (None, None))[0]
        if type(group) is LazyTensor:
            handle = group
        elif type(group) is Views and (through_data or group.function is not DATA):
            handle = group.base
        else:
            return handle


def is_of_inference(recorder: Any, handle: LazyTensor) -> bool:
    """Whether a value is computed in inference mode, within a batch that is not. A view of another tensor is what that is."""
    root = root_of(handle)
    if not recorder.graph.inference or root._recorder is not recorder or recorder.tensor_given_as(root) is not None:
        return False
    first = root._value if not root._type.ragged else next(iter(root._value), -1)
    return recorder.graph.is_of_inference(first)  # type: ignore[no-any-return]


def as_inference(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a tensor that autograd must not see."""
    with torch.inference_mode():
        return tensor.clone()


def leave_base(handle: LazyTensor) -> None:
    """A handle is no longer a view of what it was a view of."""
    group = getattr(handle, "_source", (None, None))[0]
    if type(group) is Views:
        group.leave(handle)
    elif type(group) is LazyTensor:
        group._views = [found for found in group._views if found() is not handle]


def note_change(recorder: Any, target: LazyTensor, result: LazyTensor) -> None:
    """A value is changed in place to the result. Whoever has saved it for backward, or a view of it, cannot go backward any more."""
    root = root_of(target, through_data=False)
    if root._recorder is not recorder or not recorder.has_gradients or not _has_rows(root):
        return
    values = tuple(root._value) if root._type.ragged else (root._value,)
    made = _first_value(result) if result._recorder is recorder and _has_rows(result) else -1
    recorder.note_change(values, root._type.ragged, made)


def note_written(recorder: Any, target: LazyTensor, made: LazyTensor) -> None:
    """A view was changed in place: what was computed for that is in the memory of its base now, and changes with it."""
    root = root_of(target, through_data=False)
    is_ours = (
        root._recorder is recorder and made._recorder is recorder and not root._type.ragged and not made._type.ragged
    )
    if root is not target and is_ours and recorder.has_gradients:
        recorder.graph.changes.written[root._value] = made._value


def _has_rows(handle: LazyTensor) -> bool:
    return not handle._type.ragged or len(handle._value) > 0


def row_handle(recorder: Any, values: LazyTensor, index: int | slice) -> LazyTensor:
    """A row of a ragged value, or some of its rows."""
    recorder.check_may_rearrange()
    recorder.keep_together(values)
    type = values._type.row if isinstance(index, int) else values._type
    handle = new_handle(recorder, values._value[index], type, values._depth, (values, index))
    _add(values, weakref.ref(handle))
    return handle


def row_handles(recorder: Any, values: LazyTensor) -> list[LazyTensor]:
    """All rows of a ragged value, in half the time of one by one: loops over a sequence do this for every example."""
    recorder.check_may_rearrange()
    recorder.keep_together(values)
    type, depth = values._type.row, values._depth
    handles = [
        new_handle(recorder, value, type, depth, (values, Unbound(index))) for index, value in enumerate(values._value)
    ]
    _add(values, *map(weakref.ref, handles))
    return handles


def _add(base: LazyTensor, *views: weakref.ref[Any]) -> None:
    try:
        base._views.extend(views)
    except AttributeError:
        base._views = [*views]


def is_strided(value: object) -> bool:
    if not is_tensor(value):
        return False
    with unwatched():
        return value.layout is torch.strided  # type: ignore[attr-defined]


def id_of_memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]


Layout = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shape, strides and offset."""

_known: dict[Any, tuple[Layout, bool]] = {}


def layout_of(handle: LazyTensor) -> Layout:
    group, index = getattr(handle, "_source", (None, None))
    if not isinstance(group, (LazyTensor, Views)):
        given = index if group is not None else handle._recorder.tensor_given_as(handle)
        shape = tuple(handle.shape)
        if given is None:
            return shape, _strides_of(handle) or _contiguous_strides(shape), 0
        return shape, given.stride(), given.storage_offset()
    if isinstance(group, LazyTensor):
        return _after(torch.Tensor.__getitem__, layout_of(group), (index,), {}, None, handle.dtype)[0]
    return _after(group.function, layout_of(group.base), group.args[1:], group.kwargs, index, handle.dtype)[0]


def _strides_of(handle: LazyTensor) -> tuple[int, ...] | None:
    recorder = handle._recorder
    return None if getattr(recorder, "stands_for_recorder", False) else recorder.strides_of(handle)


def part_copies(handle: LazyTensor) -> None:
    """Before a value is changed in place: of what `reshape` made of computed values, take what is a copy for one."""
    root = handle
    while True:
        group = getattr(root, "_source", (None, None))[0]
        if type(group) is Views:
            root = root if _part_if_copies(group) else group.base
            if not hasattr(root, "_source"):
                break
        elif type(group) is LazyTensor:
            root = group
        else:
            break
    _part_below(root)


def _part_below(base: LazyTensor) -> None:
    for reference in tuple(getattr(base, "_views", ())):
        found = reference()
        if type(found) is LazyTensor:
            _part_below(found)
        elif found is not None:
            views = [view for view, _ in found.in_use()]
            if not _part_if_copies(found):
                for view in views:
                    _part_below(view)


def _part_if_copies(group: Views) -> bool:
    """Whether the results of a call that may copy are copies. Then they are no views of its argument from now on."""
    if group.function not in MAY_COPY or shares_memory(group.function, group.base, group.args[1:], group.kwargs):
        return False
    for view, _ in group.in_use():
        del view._source
        if not getattr(view._recorder, "stands_for_recorder", False):
            view._recorder.graph.copies.add(_first_value(view))
    group.base._views = [reference for reference in group.base._views if reference() is not group]
    return True


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    sizes = [max(size, 1) for size in shape]
    return tuple([math.prod(sizes[place + 1 :]) for place in range(len(sizes))])


def shares_memory(function: Any, base: LazyTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the result of a function in `MAY_COPY` is a view of its first argument."""
    by_name = {name: value for name, value in kwargs.items() if name != "input"}
    return _after(function, layout_of(base), args, by_name, None, base.dtype)[1]


def _after(
    function: Callable[..., Any], layout: Layout, args: Any, kwargs: Any, index: int | None, dtype: torch.dtype
) -> tuple[Layout, bool]:
    """The layout of the result of a function, and whether the result is a view of the argument."""
    leaves: list[Any] = []
    nesting = flatten((args, kwargs), leaves)
    leaves = [_Value(tuple(leaf.shape)) if type(leaf) is LazyTensor else leaf for leaf in leaves]
    key = (function, layout, nesting, tuple([static(leaf) for leaf in leaves]), index, dtype)
    found = _known.get(key)
    if found is None:
        with recording_paused(), torch.no_grad():
            base = _without_data(layout, dtype)
            more, by_name = unflatten(nesting, iter([_as_argument(function, leaf) for leaf in leaves]))
            result = function(base, *more, **by_name)
            view = result if index is None else result[index]
            is_view = id_of_memory(view) == id_of_memory(base)
        found = _known[key] = (tuple(view.shape), view.stride(), view.storage_offset()), is_view
    return found


class _Value(NamedTuple):
    """Another value among the arguments: only its shape matters for the layout (`view_as`), or nothing (an index)."""

    shape: tuple[int, ...]


def _as_argument(function: Callable[..., Any], leaf: Any) -> Any:
    if type(leaf) is not _Value:
        return leaf
    return 0 if function is torch.Tensor.__getitem__ else torch.empty(leaf.shape, device="meta")


def _without_data(layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    shape, strides, offset = layout
    if 0 in shape:
        return torch.empty(shape, device="meta", dtype=dtype)
    return torch.empty(0, device="meta", dtype=dtype).as_strided(shape, strides, offset)
