"""Writes docs/reference.md, the reference of all public names, from their signatures and docstrings: `python docs/reference.py`.

The tests compare the page with what this makes, and run the examples in the docstrings.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import foldloom as fl

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).with_suffix(".md")

GROUPS = {
    "Batching": ["batch", "vmap", "batching", "cell", "lift", "one_by_one", "Batched", "Cell", "Ragged"],
    "Recording and planning": ["record", "record_each", "plan", "save", "load", "Recording", "Planned", "Plan"],
    "Streams and serving": ["stream", "Stream", "StreamStatistics", "Server", "Answer", "ServerStatistics"],
    "Schedulers": ["Scheduler", "ByDepth", "ByAgenda", "OneByOne"],
    "Looking inside": ["explain", "show", "profile", "Page", "Profile"],
    "Exporting": ["export", "static_model", "StaticModel"],
    "Errors": ["errors"],
}
CONSTRUCTED = {"Ragged", "ByDepth", "ByAgenda", "OneByOne"}
"""Classes that users make instances of. All others are returned by functions."""

SUBMODULES = {
    "blocks": "blocks/README.md",
    "data": "data.md",
    "models": "models.md",
    "runtime": "export.md",
    "tasks": "training.md",
    "training": "training.md",
}
HEAD = """# Reference

All public names of `import foldloom as fl`. This page is generated from the docstrings by `python docs/reference.py`; the tests run its
examples. The [guide](guide.md) has them in context.
"""


class _Plain(str):
    """An annotation, written without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def reference() -> str:
    """The whole page."""
    missing = set(fl.__all__) ^ {name for names in GROUPS.values() for name in names}
    assert not missing, f"GROUPS in docs/reference.py must have each public name once: {sorted(missing)}"
    index = [f"- {group}: " + ", ".join(map(_link, names)) for group, names in GROUPS.items()]
    parts = [HEAD, "\n".join(index)]
    for group, names in GROUPS.items():
        parts += [f"## {group}", *["\n\n".join(_entry(name, getattr(fl, name))) for name in names]]
    rows = [f"| [`foldloom.{name}`]({page}) | {_first_line(name)} |" for name, page in SUBMODULES.items()]
    parts += ["## Submodules", "\n".join(["| submodule | what it has |", "|---|---|", *rows])]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def docstring(thing: Any) -> str | None:
    """The docstring of a name; of a class without one, that of its module."""
    own = inspect.cleandoc(thing.__doc__) if thing.__doc__ else None
    if own is None and inspect.isclass(thing):
        return inspect.getdoc(sys.modules[thing.__module__])
    return own


def _link(name: str) -> str:
    """GitHub's anchors have no capitals; the second of two that are equal gets a number."""
    names = [each for group in GROUPS.values() for each in group]
    before = [each.lower() for each in names[: names.index(name)]].count(name.lower())
    return f"[`{name}`](#fl{name.lower()}{f'-{before}' if before else ''})"


def _first_line(name: str) -> str:
    return _markdown((inspect.getdoc(importlib.import_module(f"foldloom.{name}")) or "").split("\n\n")[0])


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield f"### fl.{name}"
    if inspect.isclass(thing):
        yield _code(f"class fl.{name}" + (_signature(thing) if name in CONSTRUCTED else ""))
    elif not inspect.ismodule(thing):
        is_context = inspect.isgeneratorfunction(inspect.unwrap(thing))
        yield _code(f"{'with ' if is_context else ''}fl.{name}{_signature(thing, returns=not is_context)}")
    yield _markdown(docstring(thing) or "")
    if dataclasses.is_dataclass(thing):
        fields = [f"`{field.name}: {field.type}`" for field in dataclasses.fields(thing) if field.name[0] != "_"]
        yield f"Fields: {', '.join(fields)}."
    members = [*_members(thing)]
    if members:
        yield "\n".join(members)
    path = Path(inspect.getsourcefile(inspect.unwrap(thing)) or "").relative_to(Path(fl.__file__).parent.parent)
    yield f"Source: [`{path.as_posix()}`](../{path.as_posix()})"


def _members(thing: Any) -> Iterator[str]:
    """The public methods, properties and exceptions that have a docstring of their own, in the order in which they are defined."""
    for name, member in vars(thing).items():
        if name.startswith("_"):
            continue
        if inspect.ismodule(thing):
            if inspect.isclass(member) and issubclass(member, Exception) and member.__doc__:
                yield f"- `fl.{thing.__name__.rpartition('.')[2]}.{name}`: {_summary(member.__doc__)}"
            continue
        if inspect.isfunction(member):
            if member.__doc__:
                yield f"- `.{name}{_signature(member, bound=True)}`: {_summary(member.__doc__)}"
        elif isinstance(member, property | cached_property) and member.__doc__:
            yield f"- `.{name}`: {_summary(member.__doc__)}"


def _signature(thing: Any, *, returns: bool = True, bound: bool = False) -> str:
    found = inspect.signature(thing)
    kept = list(found.parameters.values())[1 if bound else 0 :]
    parameters = [
        parameter if parameter.annotation is parameter.empty else parameter.replace(annotation=_annotation(parameter))
        for parameter in kept
    ]
    has_return = returns and not inspect.isclass(thing) and found.return_annotation is not found.empty
    arrow = _Plain(found.return_annotation) if has_return else found.empty
    return str(found.replace(parameters=parameters, return_annotation=arrow))


def _annotation(parameter: inspect.Parameter) -> Any:
    return _Plain(parameter.annotation) if isinstance(parameter.annotation, str) else parameter.annotation


def _summary(doc: str) -> str:
    return _markdown(" ".join(inspect.cleandoc(doc).split("\n\n")[0].split()))


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _markdown(doc: str) -> str:
    """A docstring as Markdown: examples in fences, literals in single quotes."""
    parts = []
    for part in re.split(r"\n\n+", doc):
        if part.startswith(">>>"):
            text = re.sub(r"  # doctest: \S+", "", part)
            parts.append(f"```pycon\n{text}\n```")
        else:
            parts.append(part if part.startswith("    ") else re.sub(r"``(.+?)``", r"`\1`", part))
    return "\n\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(fl.__all__)} names")
