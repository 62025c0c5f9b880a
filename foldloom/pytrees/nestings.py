"""Nested arguments and results of calls, as a hashable description: tuples, lists, dicts and slices alone.

A description is ``None`` for a leaf and ``(class, keys, descriptions)`` for a container, so that two calls of equal nesting have
equal descriptions. It pickles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from foldloom.pytrees.containers import is_whole, maker_of_tuples

Nesting = Any


class Constant(NamedTuple):
    """Stands in a nesting for a leaf that is always the same."""

    value: Any


class _Form(NamedTuple):
    """How containers of a class are taken apart and made, in a call."""

    items: Callable[[Any], Sequence[Any]]
    make: Callable[[Sequence[Any]], Any]


_forms: dict[type, _Form | None] = {
    slice: _Form(lambda value: (value.start, value.stop, value.step), lambda items: slice(*items))
}


def _form_of(cls: type) -> _Form | None:
    """None for a leaf. Tuples of other classes have names, or are what torch's functions return."""
    try:
        return _forms[cls]
    except KeyError:
        is_tuple = issubclass(cls, tuple) and not is_whole(cls)
        return _forms.setdefault(cls, _Form(tuple, maker_of_tuples(cls)) if is_tuple else None)


def flatten(value: Any, leaves: list[Any]) -> Nesting:
    """Append the leaves of a nested value, and describe its nesting."""
    cls = type(value)
    if cls is tuple or cls is list:
        return (cls, len(value), tuple([flatten(item, leaves) for item in value]))
    if cls is dict:
        return (cls, tuple(value), tuple([flatten(item, leaves) for item in value.values()]))
    form = _form_of(cls)
    if form is None:
        leaves.append(value)
        return None
    items = form.items(value)
    return (cls, len(items), tuple([flatten(item, leaves) for item in items]))


def unflatten(nesting: Nesting, leaves: Iterator[Any]) -> Any:
    """The inverse of `flatten`."""
    if nesting is None:
        return next(leaves)
    if type(nesting) is Constant:
        return nesting.value
    cls, keys, nestings = nesting
    items = [unflatten(item, leaves) for item in nestings]
    if cls is tuple:
        return tuple(items)
    if cls is list:
        return items
    if cls is dict:
        return dict(zip(keys, items, strict=True))
    form = _form_of(cls)
    assert form is not None, "only containers are described"
    return form.make(items)


def with_constants(nesting: Nesting, leaves: Iterator[Any], is_constant: Callable[[Any], bool]) -> Nesting:
    """The nesting with some of its leaves in it, so that the others suffice to rebuild it."""
    if nesting is None:
        leaf = next(leaves)
        return Constant(leaf) if is_constant(leaf) else None
    cls, keys, nestings = nesting
    return cls, keys, tuple([with_constants(item, leaves, is_constant) for item in nestings])


def map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Nested arguments with each leaf replaced."""
    cls = type(value)
    if cls is tuple:
        return tuple([map_leaves(item, function) for item in value])
    if cls is list:
        return [map_leaves(item, function) for item in value]
    if cls is dict:
        return {key: map_leaves(item, function) for key, item in value.items()}
    form = _form_of(cls)
    if form is None:
        return function(value)
    return form.make([map_leaves(item, function) for item in form.items(value)])
