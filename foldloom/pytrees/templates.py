"""Results without their outputs, and results with them.

An example returns nested values in which some leaves, its *outputs*, are computed later. There are two ways to keep such a result:

- A `Template` describes it. It pickles, and can be filled any number of times; each time its containers are made anew.
- A `Patched` result is the very object that the example returned. When the outputs are there, they take the places of what
  stands for them, once: who else holds that list or object sees them too, as if they had been there all along.

Both keep which containers are the same object, and which outputs are. `taking_apart` makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from foldloom.pytrees.containers import Kind, kind_of


class Output:
    """Stands for the output of this number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"<output {self.number}>"


class OutputRun:
    """Stands for a tuple or list of nothing but outputs: the states of all nodes of a tree, or of all words of a sentence."""

    __slots__ = ("cls", "first", "length")

    def __init__(self, cls: type, first: int, length: int) -> None:
        self.cls, self.first, self.length = cls, first, length

    def __repr__(self) -> str:
        return f"<{self.length} outputs>"


class Node:
    """Stands for a container; ``items`` are templates, or if there are no ``keys`` what a list of plain things holds."""

    __slots__ = ("cls", "extra", "has_outputs", "items", "keys")

    def __init__(self, cls: type, extra: Any, keys: Sequence[Any] | None, items: Sequence[Any]) -> None:
        self.cls, self.extra, self.keys, self.items = cls, extra, keys, items
        self.has_outputs = True

    def __repr__(self) -> str:
        return f"<{self.cls.__name__} of {len(self.items)}>"


class Template:
    """A result, to be filled with its outputs."""

    __slots__ = ("count", "is_shared", "root", "same")

    def __init__(self, root: Any, count: int, same: dict[int, int] | None, is_shared: bool) -> None:
        self.root, self.count = root, count
        self.same, self.is_shared = same, is_shared

    def filled(self, outputs: Sequence[Any]) -> Any:
        return _filled(self.root, _with_same(outputs, self.same), {} if self.is_shared else None)

    def __reduce__(self) -> Any:
        return "ONE_OUTPUT" if self is ONE_OUTPUT else (Template, (self.root, self.count, self.same, self.is_shared))


ONE_OUTPUT = Template(Output(0), 1, None, False)
"""A result that is one output, as most are."""


Patch = tuple[Kind, Any, Any, Any, Any]
"""Which container is changed, of which kind; at which key, where what stands now; and the template of what will stand there."""

Run = tuple[list[Any], int, list[Any]]
"""A list of nothing but outputs, the number of the first, and what stands for them."""


class Patched:
    """A result, to be filled where it stands."""

    __slots__ = ("_is_shared", "_patches", "_runs", "_same", "count", "root")

    def __init__(
        self, root: Any, outputs: Sequence[Any], patches: Sequence[Patch], runs: Sequence[Run], is_shared: bool
    ) -> None:
        self.root, self.count = root, len(outputs)
        self._patches, self._runs, self._is_shared = patches, runs, is_shared
        self._same = same_of(outputs)

    def filled(self, outputs: Sequence[Any]) -> Any:
        outputs = _with_same(outputs, self._same)
        made: dict[int, Any] | None = {} if self._is_shared else None
        for values, first, kept in self._runs:
            _fill_list(values, kept, outputs[first : first + len(kept)])
        for kind, container, key, old, template in self._patches:
            kind.replace(container, key, old, _filled(template, outputs, made))
        return _filled(self.root, outputs, made)


class PatchedList:
    """A list of nothing but outputs, to be filled where it stands."""

    __slots__ = ("_items", "_kept", "count")

    def __init__(self, values: list[Any], kept: list[Any]) -> None:
        self._items, self._kept, self.count = values, kept, len(kept)

    def filled(self, outputs: Sequence[Any]) -> Any:
        _fill_list(self._items, self._kept, outputs)
        return self._items


def _fill_list(values: list[Any], kept: list[Any], outputs: Sequence[Any]) -> None:
    """Fill a list that held nothing but what stands for outputs. Another example may have changed it since."""
    if len(values) == len(kept) and values[0] is kept[0]:
        values[:] = outputs
        return
    output_of = {id(old): output for old, output in zip(kept, outputs, strict=True)}
    values[:] = [output_of.get(id(value), value) for value in values]


def fill(templates: Iterable[Template | Patched | PatchedList], outputs: Sequence[Any]) -> list[Any]:
    """All results, from the outputs of all of them in order."""
    results = []
    start = 0
    for template in templates:
        if template is ONE_OUTPUT:
            results.append(outputs[start])
            start += 1
        else:
            end = start + template.count
            results.append(template.filled(outputs[start:end]))
            start = end
    return results


def _filled(template: Any, outputs: Sequence[Any], made: dict[int, Any] | None) -> Any:
    """What a template stands for. ``made`` has the containers so far, if some stand in several places."""
    cls = type(template)
    if cls is Output:
        return outputs[template.number]
    if cls is not OutputRun and cls is not Node:
        return template
    if made is not None:
        if id(template) not in made:
            _make_shared(template, outputs, made)
        return made[id(template)]
    if cls is OutputRun:
        return template.cls(outputs[template.first : template.first + template.length])
    if template.keys is None:
        return template.cls(template.items)
    items = [_filled(item, outputs, None) for item in template.items]
    if template.cls is tuple or template.cls is list:
        return template.cls(items)
    entries = list(zip(template.keys, items, strict=True))
    return _kind(template.cls).make(template.cls, template.extra, entries)


def _make_shared(template: Any, outputs: Sequence[Any], made: dict[int, Any]) -> None:
    """A container that may contain itself: it is known before its items are."""
    if type(template) is OutputRun or template.keys is None:
        made[id(template)] = _filled(template, outputs, None)
        return
    kind = _kind(template.cls)
    if kind.is_mutable:
        made[id(template)] = kind.make(template.cls, template.extra, ())
    items = [_filled(item, outputs, made) for item in template.items]
    entries = list(zip(template.keys, items, strict=True))
    if kind.is_mutable:
        kind.add(made[id(template)], entries)
    else:
        made[id(template)] = kind.make(template.cls, template.extra, entries)


def _kind(cls: type) -> Kind:
    kind = kind_of(cls)
    assert kind is not None, "only containers become nodes"
    return kind


# ---- The same tensor twice in one result is one tensor.


def same_of(outputs: Sequence[Any]) -> dict[int, int] | None:
    """For outputs that were there before: where. None if there are none."""
    if not outputs or differ(outputs):
        return None
    first: dict[int, int] = {}
    places = [first.setdefault(id(output), number) for number, output in enumerate(outputs)]
    return {number: place for number, place in enumerate(places) if place != number}


def differ(outputs: Sequence[Any]) -> bool:
    hash_of: Any = type(outputs[0]).__hash__
    is_hashed_by_identity = hash_of is object.__hash__
    return len(set(outputs if is_hashed_by_identity else map(id, outputs))) == len(outputs)


def _with_same(outputs: Sequence[Any], same: dict[int, int] | None) -> Sequence[Any]:
    if same is None:
        return outputs
    return [outputs[same.get(number, number)] for number in range(len(outputs))]
