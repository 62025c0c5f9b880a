"""What a function can reach that is not its own: modules, objects and containers that all examples of a batch share.

Found once for each batch that waits, when it first does: through variables of enclosing functions, globals that are read, default
arguments, attributes of modules and of objects, some levels deep. Of a class, methods count whose names occur in what has been found so far.
"""

from __future__ import annotations

import sys
import threading
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator, Set
from functools import partial
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from foldloom.caching import cached_property
from foldloom.tracing.fibers.code_facts import Facts, facts_of
from foldloom.tracing.scope import is_machinery, unwatched

CONTAINERS = (list, dict, set, deque, bytearray, np.ndarray)
MOST_ITEMS = 256
"""Containers with more items are looked at for their length alone, dicts for any change."""
_DEEPEST = 4
_MOST_OBJECTS = 5000
_NOT_METHODS = frozenset(("__init__", "__new__", "__setattr__", "__getattr__", "__getattribute__", "__init_subclass__"))


class Reachable:
    """``changed`` are shared things that the code itself says it changes, ``objects`` those whose changes must be looked for."""

    def __init__(self, function: object) -> None:
        self.modules: dict[int, nn.Module] = {}
        self.objects: dict[int, tuple[str, Any]] = {}
        self.changed: dict[str, None] = {}
        self.facts = Facts()
        """Of all functions but methods of classes that are no modules: what they store goes to objects of their own."""
        self._names: frozenset[str] = frozenset()
        self._classes: dict[type, Any] = {}
        self._namespaces: dict[int, ModuleType] = {}
        self._seen: dict[int, Any] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._visit(function, "the function", 0)
        self._visit_methods()
        for module in self.modules.values():
            self._note_changed_tensors(module)
        if self.modules and self.facts.changed_weights:
            self.changed["the weights of a module"] = None

    @cached_property
    def memory(self) -> Set[int]:
        """Of the tensors that all examples see, among them the weights and buffers of modules."""
        tables = [table for module in self.modules.values() for table in (module._parameters, module._buffers)]
        tensors = [*self._tensors.values(), *[tensor for table in tables for tensor in table.values()]]
        strided = [tensor for tensor in tensors if tensor is not None and tensor.layout is torch.strided]
        with unwatched():
            return {tensor.untyped_storage()._cdata for tensor in strided}

    def _visit(self, thing: Any, label: str, depth: int) -> None:
        if id(thing) in self._seen or depth > _DEEPEST or len(self._seen) > _MOST_OBJECTS:
            return
        kind = type(thing)
        if kind in _SIMPLE:
            return
        if isinstance(thing, torch.Tensor):
            self._tensors[id(thing)] = thing
            return
        self._seen[id(thing)] = thing
        if kind is FunctionType:
            self._visit_function(thing)
        elif kind is MethodType:
            self._visit(thing.__self__, label, depth)
            self._visit_function(thing.__func__)
        elif kind is partial:
            self._visit_all([thing.func, *thing.args, *thing.keywords.values()], label, depth)
        elif isinstance(thing, nn.Module):
            self._visit_module(thing)
        elif isinstance(thing, type):
            self._note_class(thing, None)
        elif kind in _LOCKS:
            self.changed[f"the lock {label}"] = None  # an example that waits while it holds it would stop all others
        elif isinstance(thing, ModuleType):
            if _is_users(thing.__name__):
                self._namespaces[id(thing)] = thing
        elif isinstance(thing, CONTAINERS):
            self.objects[id(thing)] = label, thing
            self._visit_all(_items(thing), f"an item of {label}", depth + 1)
        elif isinstance(thing, Iterator):
            self.changed[label] = None  # to read it is to change it
        elif isinstance(thing, tuple):
            self._visit_all(_items(thing), f"an item of {label}", depth + 1)
        elif (_is_users(kind.__module__) or kind in _NAMESPACES) and hasattr(thing, "__dict__"):
            self.objects[id(thing)] = label, thing
            self._note_class(kind, label)
            for name, value in list(vars(thing).items()):
                self._visit(value, f"`{name}` of {label}", depth + 1)

    def _visit_all(self, things: Iterable[Any], label: str, depth: int) -> None:
        for thing in things:
            self._visit(thing, label, depth)

    def _visit_function(self, function: Any) -> None:
        if type(function) is not FunctionType or is_machinery(function.__code__.co_filename):
            return
        facts = facts_of(function.__code__)
        self._names |= facts.names
        self.facts = self.facts.union(facts)
        self.changed.update(dict.fromkeys([f"the global `{name}`" for name in facts.globals]))
        if "globals" in facts.loaded and "globals" not in function.__globals__:
            self.changed["globals, by `globals()`"] = None
        for name in facts.loaded:
            if name in function.__globals__:
                self._visit_variable(function.__globals__[name], name, f"the global `{name}`", facts)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            label = f"`{name}` of the enclosing function"
            if name in facts.cells:
                self.changed[label] = None
            try:
                value = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            self._visit_variable(value, name, label, facts)
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        self._visit_all(defaults, f"a default argument of `{function.__name__}`", 0)

    def _visit_variable(self, value: Any, name: str, label: str, facts: Facts) -> None:
        self._visit(value, label, 0)
        changed = name in facts.changed_globals or name in facts.changed_cells
        is_own_class = isinstance(value, type) and _is_users(value.__module__)
        stored_into = name in facts.stored_into and isinstance(value, (FunctionType, ModuleType))
        is_seen = id(value) in self.objects or isinstance(value, torch.Tensor)
        if (changed and (is_seen or is_own_class)) or stored_into:
            self.changed[label] = None

    def _visit_module(self, module: nn.Module) -> None:
        for part in _parts(module):
            if id(part) in self.modules:
                continue
            self.modules[id(part)] = part
            self._seen[id(part)] = part
            kind = type(part)
            if not _is_users(kind.__module__):
                continue
            self._note_class(kind, None)
            for name, value in list(part.__dict__.items()):
                if name not in OF_TORCH:
                    self._visit(value, f"`{name}` of {kind.__name__}", 1)

    def _note_changed_tensors(self, module: nn.Module) -> None:
        """Tensors of a module that the code changes in place, or torch itself does."""
        label = type(module).__name__
        if module.training and getattr(module, "running_mean", None) is not None:
            self.changed[f"the running statistics of {label}"] = None
        if getattr(module, "max_norm", None) is not None:
            self.changed[f"the weight of {label}, because of `max_norm`"] = None
        for table in (vars(module), module._parameters, module._buffers):
            for name in self.facts.changed_attributes.intersection(
                table.keys()
            ):  # of a scripted module they are a list
                if isinstance(table[name], torch.Tensor):
                    self.changed[f"`{name}` of {label}"] = None

    def _note_class(self, kind: type, label: str | None) -> None:
        """``label`` is what to call an object of it that is shared."""
        if _is_users(kind.__module__) and self._classes.get(kind) is None:
            self._classes[kind] = label

    def _visit_methods(self) -> None:
        done: set[int] = set()
        names = None
        while names != self._names:
            names = self._names
            for name in names & _BEHIND_THE_BACK.keys():
                self.changed[_BEHIND_THE_BACK[name]] = None
            for owner, name, member, label in list(self._members()):
                if id(member) in done:
                    continue
                done.add(id(member))
                if owner is not None and not issubclass(owner, nn.Module):
                    self._visit_method(member, name, label)
                else:
                    self._visit_function(member)

    def _visit_method(self, method: Any, name: str, label: str | None) -> None:
        """A method of an object that is no module: it may change that object, and things outside."""
        before = self.facts
        self._visit_function(method)
        facts = facts_of(method.__code__) if type(method) is FunctionType else Facts()
        self.facts = before._replace(loaded=self.facts.loaded)
        if label is not None and (facts.attributes or facts.changed_attributes):
            self.changed[f"{label} (by its method `{name}`)"] = None

    def _members(self) -> Iterator[tuple[type | None, str, Any, Any]]:
        for kind, label in self._classes.items():
            for base in kind.__mro__:
                if not _is_users(base.__module__):
                    continue
                for name, member in vars(base).items():
                    if name not in _NOT_METHODS and (name in self._names or name == "forward" or name[:2] == "__"):
                        for function in _functions(member):
                            yield kind, name, function, label
        for namespace in self._namespaces.values():
            for name in self._names & vars(namespace).keys():
                value = vars(namespace)[name]
                for function in _functions(value):
                    yield None, name, function, None


_SIMPLE = frozenset(
    (int, float, bool, str, bytes, complex, type(None), type(len), type(...), slice, range, torch.dtype, torch.device)
)
_NAMESPACES = (SimpleNamespace, Namespace)
_BEHIND_THE_BACK = {
    "chdir": "the working directory",
    "__dict__": "the `__dict__` of an object",
    "__setattr__": "an attribute by `__setattr__`",
}
"""What is changed by whoever looks up these names, in ways that nobody can follow."""
_LOCKS = frozenset((type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore))
OF_TORCH = frozenset(nn.Module().__dict__)


def _functions(member: Any) -> list[Any]:
    if isinstance(member, property):
        return [function for function in (member.fget, member.fset, member.fdel) if function is not None]
    member = getattr(member, "__func__", member)  # of a static method or a class method
    member = getattr(member, "__wrapped__", member)
    return [member] if type(member) is FunctionType else []


def _items(container: Any) -> list[Any]:
    if isinstance(container, (np.ndarray, bytearray)) or len(container) > MOST_ITEMS:
        return []
    return list(container.values()) if isinstance(container, dict) else list(container)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The module and its parts; not what is inside of cells, which run apart from their examples."""
    if type(module).__module__.startswith("foldloom.tracing"):
        return
    yield module
    for part in list(module._modules.values()):
        if part is not None:
            yield from _parts(part)


def _is_users(name: str | None) -> bool:
    """Whether a module of this name is neither Python's, torch's nor ours."""
    if not name:
        return False
    root = name.partition(".")[0]
    if root == "foldloom":
        return name.startswith(("foldloom.models", "foldloom.tasks"))
    return name == "__main__" or (root not in ("torch", "numpy", "builtins") and root not in sys.stdlib_module_names)
