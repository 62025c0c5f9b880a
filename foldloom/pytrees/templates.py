"""Results without their outputs, and results with them.

An example returns nested values in which some leaves, its *outputs*, are computed later. There are two ways to keep such a result:

- A `Template` describes it. It pickles, and can be filled any number of times; each time its containers are made anew.
- A `Patched` result is the very object that the example returned. When the outputs are there, they take the places of what
  stands for them, once: who else holds that list or object sees them too, as if they had been there all along.

Both keep which containers are the same object, and which outputs are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any

from foldloom.errors import RecordingError
from foldloom.pytrees.containers import Kind, is_record, kind_of

Leaf = type | tuple[type, ...]


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

    __slots__ = ("_is_shared", "_same", "count", "root")

    def __init__(self, root: Any, count: int, same: dict[int, int] | None, is_shared: bool) -> None:
        self.root, self.count = root, count
        self._same, self._is_shared = same, is_shared

    def filled(self, outputs: Sequence[Any]) -> Any:
        return _filled(self.root, _with_same(outputs, self._same), {} if self._is_shared else None)

    def __reduce__(self) -> Any:
        return "ONE_OUTPUT" if self is ONE_OUTPUT else (Template, (self.root, self.count, self._same, self._is_shared))


ONE_OUTPUT = Template(Output(0), 1, None, False)
"""A result that is one output, as most are."""


class Patched:
    """A result, to be filled where it stands."""

    __slots__ = ("_is_shared", "_patches", "_runs", "_same", "count", "root")

    def __init__(self, walk: _Patching, root: Any) -> None:
        self.root, self.count = root, len(walk.outputs)
        self._patches, self._runs, self._is_shared = walk.patches, walk.runs, walk.is_shared
        self._same = _same_of(walk.outputs)

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

    __slots__ = ("_kept", "_values", "count")

    def __init__(self, values: list[Any], kept: list[Any]) -> None:
        self._values, self._kept, self.count = values, kept, len(kept)

    def filled(self, outputs: Sequence[Any]) -> Any:
        _fill_list(self._values, self._kept, outputs)
        return self._values


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


def _same_of(outputs: Sequence[Any]) -> dict[int, int] | None:
    """For outputs that were there before: where. None if there are none."""
    if not outputs or _differ(outputs):
        return None
    first: dict[int, int] = {}
    places = [first.setdefault(id(output), number) for number, output in enumerate(outputs)]
    return {number: place for number, place in enumerate(places) if place != number}


def _differ(outputs: Sequence[Any]) -> bool:
    hash_of: Any = type(outputs[0]).__hash__
    is_hashed_by_identity = hash_of is object.__hash__
    return len(set(outputs if is_hashed_by_identity else map(id, outputs))) == len(outputs)


def _with_same(outputs: Sequence[Any], same: dict[int, int] | None) -> Sequence[Any]:
    if same is None:
        return outputs
    return [outputs[same.get(number, number)] for number in range(len(outputs))]


# ---- Taking results apart.

_PLAIN = frozenset((bool, int, float, str, bytes, complex, type(None)))


def template_of(result: Any, leaf: Leaf) -> tuple[Template, Sequence[Any]]:
    """The template of a result, and its outputs, which are the leaves of the given class."""
    cls = type(result)
    if cls is leaf:
        return ONE_OUTPUT, (result,)
    if (cls is tuple or cls is list) and _are_all(result, leaf):
        return _row(cls, len(result)), list(result)
    walk = _Copying(leaf)
    root = _deep(walk.template_of, result)
    return Template(root, len(walk.outputs), _same_of(walk.outputs), walk.is_shared), walk.outputs


def patched(result: Any, leaf: Leaf) -> tuple[Template | Patched | PatchedList, Sequence[Any]]:
    """The same for a result that is filled once."""
    cls = type(result)
    if cls is leaf:
        return ONE_OUTPUT, (result,)
    if (cls is tuple or cls is list) and _are_all(result, leaf):
        outputs = list(result)
        return _row(cls, len(outputs)) if cls is tuple else PatchedList(result, outputs), outputs
    walk = _Patching(leaf)
    root = _deep(walk.seen_from_outside, result)
    if not walk.outputs:
        return Template(root, 0, None, False), ()
    return Patched(walk, root), walk.outputs


def _are_all(items: Sequence[Any], leaf: Leaf) -> bool:
    """Whether the items are outputs, each another."""
    return set(map(type, items)) == {leaf} and _differ(items)


def _are_leaves(classes: set[type], leaf: Leaf) -> bool:
    return classes == {leaf} or all(issubclass(cls, leaf) for cls in classes)


_rows: dict[tuple[type, int], Template] = {}


def _row(cls: type, length: int) -> Template:
    key = cls, length
    if key not in _rows:
        _rows[key] = Template(OutputRun(cls, 0, length), length, None, False)
    return _rows[key]


def _deep(walk: Callable[[Any], Any], result: Any) -> Any:
    try:
        return walk(result)
    except RecursionError:
        raise RecordingError(
            "the result is nested too deeply to be looked through. Return a flat list of its tensors"
        ) from None


class _Copying:
    """Takes a result apart for a `Template`."""

    __slots__ = ("_leaf", "_seen", "is_shared", "outputs")

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf
        self.outputs: list[Any] = []
        self.is_shared = False
        self._seen: dict[int, Any] = {}

    def template_of(self, value: Any) -> Any:
        cls = type(value)
        if cls in _PLAIN:
            return value
        if issubclass(cls, self._leaf):
            self.outputs.append(value)
            return Output(len(self.outputs) - 1)
        kind = kind_of(cls)
        if kind is None:
            return value
        if id(value) in self._seen:
            self.is_shared = True
            return self._seen[id(value)]
        if cls is list or cls is tuple:
            row = self._row(value)
            if row is not None:
                self._seen[id(value)] = row
                return row
        return self._node(value, cls, kind)

    def _row(self, values: Any) -> Any:
        """Outputs alone, or numbers and words alone, the heads of a sentence's words say: no need to look at each of them."""
        classes = set(map(type, values))
        if _PLAIN.issuperset(classes):
            if type(values) is tuple:
                return values
            node = Node(list, None, None, values.copy())
            node.has_outputs = False
            return node
        if _are_leaves(classes, self._leaf):
            self.outputs += values
            return OutputRun(type(values), len(self.outputs) - len(values), len(values))
        return None

    def _node(self, value: Any, cls: type, kind: Kind) -> Any:
        entries = kind.entries(value)
        _refuse_keys(value, entries, self._leaf)
        node = Node(cls, kind.extra(value), [key for key, _ in entries], ())
        self._seen[id(value)] = node
        node.items = [self.template_of(item) for _, item in entries]
        node.has_outputs = any(map(_has_outputs, node.items))
        if not kind.is_mutable and all(map(is_, node.items, [item for _, item in entries])):
            self._seen[id(value)] = value
            return value
        if kind.is_object:
            if not node.has_outputs and not is_record(cls):
                self._seen[id(value)] = value  # its class is unknown, and there is no need to know it
                return value
            if not kind.can_make:
                raise RecordingError(
                    f"a {cls.__name__} that holds computed tensors is returned, and there is no way to copy one for every run. Return "
                    "them in a tuple, list, dict or dataclass"
                )
        return node


def _has_outputs(template: Any) -> bool:
    return type(template) in (Output, OutputRun) or (type(template) is Node and template.has_outputs)


class _Patching:
    """Looks through a result for a `Patched` one. What can be changed is entered later, so that chains of objects may be long."""

    __slots__ = ("_leaf", "_pending", "_seen", "is_shared", "outputs", "patches", "runs")

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf
        self.outputs: list[Any] = []
        self.patches: list[tuple[Kind, Any, Any, Any, Any]] = []
        self.runs: list[tuple[list[Any], int, list[Any]]] = []
        self.is_shared = False
        self._seen: dict[int, Any] = {}
        self._pending: list[tuple[Kind, Any]] = []

    def seen_from_outside(self, result: Any) -> Any:
        root = self._template_of(result)
        while self._pending:
            self._enter(*self._pending.pop())
        return root

    def _template_of(self, value: Any) -> Any:
        """What stands for a value where it is held: itself, unless it is an output or cannot be changed and has outputs in it."""
        cls = type(value)
        if cls in _PLAIN:
            return value
        if issubclass(cls, self._leaf):
            self.outputs.append(value)
            return Output(len(self.outputs) - 1)
        kind = kind_of(cls)
        if kind is None:
            return value
        if id(value) in self._seen:
            self.is_shared = True
            return self._seen[id(value)]
        if kind.is_mutable:
            self._seen[id(value)] = value
            self._pending.append((kind, value))
            return value
        template = self._seen[id(value)] = self._immutable(value, cls, kind)
        return template

    def _immutable(self, value: Any, cls: type, kind: Kind) -> Any:
        if cls is tuple and value and _are_leaves(set(map(type, value)), self._leaf):
            self.outputs += value
            return OutputRun(cls, len(self.outputs) - len(value), len(value))
        entries = kind.entries(value)
        items = [self._template_of(item) for _, item in entries]
        if all(map(is_, items, [item for _, item in entries])):
            return value
        return Node(cls, kind.extra(value), [key for key, _ in entries], items)

    def _enter(self, kind: Kind, container: Any) -> None:
        if type(container) is list and container:
            classes = set(map(type, container))
            if _PLAIN.issuperset(classes):
                return
            if _are_leaves(classes, self._leaf):
                self.runs.append((container, len(self.outputs), container.copy()))
                self.outputs += container
                return
        entries = kind.entries(container)
        _refuse_keys(container, entries, self._leaf)
        for key, item in entries:
            template = self._template_of(item)
            if template is not item:
                self.patches.append((kind, container, key, item, template))


def _refuse_keys(value: Any, entries: Sequence[tuple[Any, Any]], leaf: Leaf) -> None:
    if not isinstance(value, dict):
        return
    for key, _ in entries:
        if type(key) is not str and isinstance(key, leaf):
            raise RecordingError(
                "a computed tensor is a key of a dict in the result, and cannot be one before it is computed. Return a list of pairs instead"
            )
