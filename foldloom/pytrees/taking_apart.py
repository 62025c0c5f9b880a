"""Taking results apart: from what an example returned to a `Template` or a `Patched` result, and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from types import FunctionType
from typing import Any

from foldloom.errors import RecordingError
from foldloom.pytrees.containers import FUNCTION, Kind, is_record, kind_of
from foldloom.pytrees.templates import (
    ONE_OUTPUT,
    Node,
    Output,
    OutputRun,
    Patch,
    Patched,
    PatchedList,
    Run,
    Template,
    differ,
    same_of,
)

Leaf = type | tuple[type, ...]

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
    return Template(root, len(walk.outputs), same_of(walk.outputs), walk.is_shared), walk.outputs


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
    return Patched(root, walk.outputs, walk.patches, walk.runs, walk.is_shared), walk.outputs


def _are_all(items: Sequence[Any], leaf: Leaf) -> bool:
    """Whether the items are outputs, each another."""
    return set(map(type, items)) == {leaf} and differ(items)


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
        self.patches: list[Patch] = []
        self.runs: list[Run] = []
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
        kind = FUNCTION if cls is FunctionType else kind_of(cls)
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
