"""Results in a file: Python's own containers, with outputs in them."""

from __future__ import annotations

from typing import Any

from foldloom.errors import RecordingError
from foldloom.pytrees import Node, Output, OutputRun, Template
from foldloom.pytrees.messages import shown
from foldloom.tracing.storing.ops import MOST_LEVELS, count_of

_CONTAINERS = {"list": list, "tuple": tuple, "dict": dict}


def stored_template(template: Any) -> Any:
    if not isinstance(template, Template) or template.is_shared:
        raise RecordingError(
            "results in which one container stands twice cannot be saved: keep the recording by `pickle`"
        )
    same = None if template.same is None else [[key, value] for key, value in template.same.items()]
    return [_stored_part(template.root), template.count, same]


def _stored_part(part: Any) -> Any:
    if part is None or type(part) in (bool, int, str):
        return part
    if type(part) is float:
        return {"float": part.hex()}
    if isinstance(part, Output):
        return {"output": part.number}
    if type(part) is tuple:
        return {"plain": [_stored_part(item) for item in part]}
    if isinstance(part, OutputRun) and part.cls in _CONTAINERS.values():
        return {"run": [part.cls.__name__, part.first, part.length]}
    if isinstance(part, Node) and part.cls in _CONTAINERS.values() and part.extra is None:
        keys = None if part.keys is None else [_stored_part(key) for key in part.keys]
        return {"node": [part.cls.__name__, keys, [_stored_part(item) for item in part.items], part.has_outputs]}
    raise RecordingError(
        f"a result holds {shown(part)} ({type(part).__name__}), which a file cannot hold: return tensors, numbers and texts in tuples, lists and dicts"
    )


def template_of(stored: Any) -> Template:
    root, count, same = stored
    found = _part(root, count_of(count), 0)
    alike = None if same is None else {count_of(key): count_of(value) for key, value in same}
    if alike is not None and not all(0 <= number < count for pair in alike.items() for number in pair):
        raise RecordingError("a result has other tensors than it says")
    return Template(found, count, alike, False)


def _part(stored: Any, count: int, level: int) -> Any:
    if level > MOST_LEVELS:
        raise RecordingError("a result is nested too deeply")
    if stored is None or type(stored) in (bool, int, str):
        return stored
    ((kind, content),) = stored.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "plain":
        return tuple([_part(item, count, level + 1) for item in content])
    if kind == "output" and 0 <= count_of(content) < count:
        return Output(content)
    if kind == "run" and count_of(content[1]) >= 0 and count_of(content[2]) >= 0 and content[1] + content[2] <= count:
        return OutputRun(_CONTAINERS[content[0]], content[1], content[2])
    if kind == "node":
        cls, keys, items, has_outputs = content
        parts = [_part(item, count, level + 1) for item in items]
        if keys is not None and len(keys) != len(parts):
            raise RecordingError("a result has another number of keys than of items")
        names = None if keys is None else [_part(key, 0, level + 1) for key in keys]
        node = Node(_CONTAINERS[cls], None, names, parts)
        node.has_outputs = has_outputs is True
        return node
    raise RecordingError(f"{shown(stored)} is no part of a result")
