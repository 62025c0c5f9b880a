"""Writes the reference of all public names from their signatures and docstrings: `python docs/reference.py`. The names of `foldloom` itself are in
docs/reference.md, those of its submodules in a page for each, docs/reference/*.md.

The tests compare the pages with what this makes, and run the examples in the docstrings.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import foldloom as fl
from foldloom.caching import cached_property

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
NOT_CALLED = {
    "foldloom": {"Answer", "Batched", "Cell", "Page", "Plan", "Planned", "Profile", "Recording", "Scheduler", "Server",
                 "ServerStatistics", "StaticModel", "Stream", "StreamStatistics"},
    "foldloom.blocks": {"Block", "Model", "MetricRows"},
    "foldloom.models": {"Trainable"},
    "foldloom.tasks": {"Task"},
    "foldloom.training": {"Run"},
}  # fmt: skip
"""Classes that users do not call: functions return what is of them, or users derive their own. All others are shown with arguments."""

SUBMODULES = {
    "blocks": "blocks/README.md",
    "data": "data.md",
    "models": "models.md",
    "runtime": "export.md",
    "tasks": "training.md",
    "training": "training.md",
}
"""Each with the page that has its names in context."""

SHORT = {"foldloom": "fl", "foldloom.blocks": "fb"}
"""As what users import a module, where that is not its own name."""
HEAD = """# Reference

All public names of `import foldloom as fl`. This page is generated from the docstrings by `python docs/reference.py`; the tests run its
examples. The [guide](guide.md) has them in context. Its [submodules](#submodules) have pages of their own.
"""


class _Plain(str):
    """An annotation, written without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def pages() -> dict[Path, str]:
    """The text of each page."""
    return {PAGE: reference(), **{PAGE.with_suffix("") / f"{name}.md": reference_of(name) for name in SUBMODULES}}


def reference() -> str:
    """The page of `foldloom` itself."""
    missing = set(fl.__all__) ^ {name for names in GROUPS.values() for name in names}
    assert not missing, f"GROUPS in docs/reference.py must have each public name once: {sorted(missing)}"
    order = [name for names in GROUPS.values() for name in names]
    index = [f"- {group}: " + ", ".join(_link(fl, name, order) for name in names) for group, names in GROUPS.items()]
    parts = [HEAD, "\n".join(index)]
    for group, names in GROUPS.items():
        parts += [f"## {group}", *["\n\n".join(_entry(fl, name, 3)) for name in names]]
    rows = [f"| [`foldloom.{name}`](reference/{name}.md) | {_first_line(name)} |" for name in SUBMODULES]
    parts += ["## Submodules", "\n".join(["| submodule | what it has |", "|---|---|", *rows])]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def reference_of(name: str) -> str:
    """The page of a submodule."""
    module = importlib.import_module(f"foldloom.{name}")
    short, names = _short(module), sorted(module.__all__, key=str.lower)
    shown = f"import foldloom.{name} as {short}" if short == name else f"from foldloom import {name} as {short}"
    head = f"""# Reference: foldloom.{name}

{_first_line(name)}

All public names of `{shown.replace(f" as {name}", "")}`, generated from the docstrings by `python docs/reference.py`.
Where they are used: [{SUBMODULES[name]}](../{SUBMODULES[name]}).
"""
    parts = [head, ", ".join(_link(module, each, names) for each in names)]
    parts += ["\n\n".join(_entry(module, each, 2)) for each in names]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def docstring(thing: Any) -> str | None:
    """The docstring of a name; of a class without one, that of its module."""
    if isinstance(thing, dict):
        return inspect.getdoc(importlib.import_module("foldloom.tasks"))
    own = inspect.cleandoc(thing.__doc__) if thing.__doc__ else None
    if own is None and inspect.isclass(thing):
        return inspect.getdoc(sys.modules[thing.__module__])
    return own


def _short(module: ModuleType) -> str:
    return SHORT.get(module.__name__, module.__name__.rpartition(".")[2])


def _link(module: ModuleType, name: str, names: list[str]) -> str:
    """GitHub's anchors have no capitals; the second of two that are equal gets a number."""
    before = [each.lower() for each in names[: names.index(name)]].count(name.lower())
    return f"[`{name}`](#{_short(module)}{name.lower()}{f'-{before}' if before else ''})"


def _first_line(name: str) -> str:
    return _markdown((inspect.getdoc(importlib.import_module(f"foldloom.{name}")) or "").split("\n\n")[0])


def _entry(module: ModuleType, name: str, level: int) -> Iterator[str]:
    thing, full = getattr(module, name), f"{_short(module)}.{name}"
    yield f"{'#' * level} {full}"
    is_error = inspect.isclass(thing) and issubclass(thing, Exception)
    if inspect.isclass(thing):
        is_made = name not in NOT_CALLED.get(module.__name__, ()) and not is_error
        yield _code(f"class {full}" + (_signature(thing) if is_made else ""))
    elif inspect.isfunction(thing):
        is_context = inspect.isgeneratorfunction(inspect.unwrap(thing))
        yield _code(f"{'with ' if is_context else ''}{full}{_signature(thing, returns=not is_context)}")
    yield _markdown(docstring(thing) or "")
    if dataclasses.is_dataclass(thing):
        fields = [f"`{field.name}: {field.type}`" for field in dataclasses.fields(thing) if field.name[0] != "_"]
        yield f"Fields: {', '.join(fields)}."
    members = [*_members(thing)]
    if members:
        yield "\n".join(members)
    source = inspect.getsourcefile(inspect.unwrap(module if isinstance(thing, dict) else thing)) or ""
    path = Path(source).relative_to(ROOT).as_posix()
    yield f"Source: [`{path}`]({'../' * (1 if module is fl else 2)}{path})"


def _members(thing: Any) -> Iterator[str]:
    """The public methods, properties and exceptions that have a docstring of their own, in the order in which they are defined."""
    if isinstance(thing, dict):
        return
    for name, member in vars(thing).items():
        if name.startswith("_"):
            continue
        if inspect.ismodule(thing):
            if inspect.isclass(member) and issubclass(member, Exception) and member.__doc__:
                yield f"- `fl.{thing.__name__.rpartition('.')[2]}.{name}`: {_summary(member.__doc__)}"
            continue
        if isinstance(member, classmethod):
            if member.__doc__:
                yield f"- `{thing.__name__}.{name}{_signature(member.__func__, bound=True)}`: {_summary(member.__doc__)}"
        elif inspect.isfunction(member):
            if member.__doc__:
                yield f"- `.{name}{_signature(member, bound=True)}`: {_summary(member.__doc__)}"
        elif isinstance(member, property | cached_property) and member.__doc__:
            yield f"- `.{name}`: {_summary(member.__doc__)}"


def _signature(thing: Any, *, returns: bool = True, bound: bool = False) -> str:
    found = inspect.signature(thing)
    kept = list(found.parameters.values())[1 if bound else 0 :]
    parameters = [
        parameter.replace(annotation=_annotation(parameter), default=_default(parameter)) for parameter in kept
    ]
    has_return = returns and not inspect.isclass(thing) and found.return_annotation is not found.empty
    arrow = _Plain(found.return_annotation) if has_return else found.empty
    return str(found.replace(parameters=parameters, return_annotation=arrow))


def _annotation(parameter: inspect.Parameter) -> Any:
    return _Plain(parameter.annotation) if isinstance(parameter.annotation, str) else parameter.annotation


def _default(parameter: inspect.Parameter) -> Any:
    """Functions by their names: their `repr` has their address."""
    return _Plain(parameter.default.__name__) if inspect.isroutine(parameter.default) else parameter.default


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
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
