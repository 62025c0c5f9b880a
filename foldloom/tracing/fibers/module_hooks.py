"""What torch's modules do from the first batch on, when an attribute is written or not found.

Where no batch is under way it makes next to no difference.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from greenlet import getcurrent
from torch import nn

from foldloom.errors import SharedStateError
from foldloom.execution.backward.weight_grads import LateWeight
from foldloom.tracing.fibers.module_state import Placed, guarded, hidden, locate, lock, place, writing
from foldloom.tracing.scope import scope

_batches = 0
"""How many batches are under way, in all threads."""


def _set_attribute(module: nn.Module, name: str, value: Any) -> None:
    journal = slot = None
    if _batches:
        journal = getattr(fiber := getcurrent(), "journal", None)
        if journal is not None:
            slot = journal.before_write(fiber, module, name)
            if slot is not None and isinstance(value, (nn.Parameter, nn.Module)):
                journal.note_write(
                    fiber, slot
                )  # before it is written: torch asks whether there is such an attribute already
    _plain_set(module, name, value)
    if journal is not None:
        if scope.recorder is not None:
            journal.touched[id(module), name] = module
        if slot is not None:
            journal.note_write(fiber, slot)


def _delete_attribute(module: nn.Module, name: str) -> None:
    journal = slot = None
    if _batches:
        journal = getattr(fiber := getcurrent(), "journal", None)
        if journal is not None:
            journal.see(fiber, module, name)  # else it would not be there
            slot = journal.before_write(fiber, module, name)
    _plain_delete(module, name)
    if journal is not None:
        if slot is not None:
            journal.note_write(fiber, slot)
        known = journal.slots.get((id(module), name))
        if known in fiber.view:
            fiber.view[known] = None  # it has none any more, whatever it had when it paused


def get_attribute(module: nn.Module, name: str) -> Any:
    """`nn.Module.__getattr__`. `_automatic.c` stands in front of it."""
    if name in guarded:
        fiber = getcurrent()
        journal = getattr(fiber, "journal", None)
        if journal is not None and (slot := journal.see(fiber, module, name)) is not None:
            placed = locate(module, name) or fiber.view[slot]
        else:
            placed = _seen_outside(module, name)
        if placed is not None:
            return placed[1]
    try:
        value = _plain_get(module, name)
        if type(value) is LateWeight and value.thread != threading.get_ident():
            return value.weight
        return value
    except AttributeError:
        if not _batches:
            raise
        placed = locate(module, name)  # another thread's batch may have ended meanwhile
        if placed is not None:
            return placed[1]
        if (journal := getattr(fiber := getcurrent(), "journal", None)) is not None:
            journal.note_missing(fiber, module, name)
        raise


def _seen_outside(module: nn.Module, name: str) -> Placed:
    """For whoever is in no example that it is guarded for: another thread, or a kernel of the batch."""
    slots = hidden.get((id(module), name))
    if not slots:
        return None
    for slot in slots:
        if slot.written and slot.owner.is_mine():
            raise SharedStateError(
                f"a cell reads {slot.label}, which examples of this batch write, and it runs for many of them at once. Give it the "
                "value as an argument"
            )
    return locate(module, name) or slots[0].base


def _initialise(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    _note_birth(module)
    _plain_init(module, *args, **kwargs)


def _set_state(module: nn.Module, state: Any) -> None:
    _note_birth(module)
    _plain_set_state(module, state)


def _note_birth(module: nn.Module) -> None:
    if _batches and (journal := getattr(getcurrent(), "journal", None)) is not None:
        born = journal.born
        key = id(module)
        born[key] = weakref.ref(module, lambda _: born.pop(key, None))


def _get_state(module: nn.Module) -> Any:
    """For copies: of all that the module has."""
    if _batches and (journal := getattr(fiber := getcurrent(), "journal", None)) is not None:
        for number, name in list(journal.slots):
            if number == id(module):
                journal.see(fiber, module, name)
    return _plain_get_state(module)


_plain_set, _plain_delete, _plain_get = nn.Module.__setattr__, nn.Module.__delattr__, nn.Module.__getattr__
_plain_init, _plain_set_state = nn.Module.__init__, nn.Module.__setstate__
_plain_get_state = nn.Module.__getstate__
_NAMES = ("__setattr__", "__delattr__", "__getattr__", "__init__", "__setstate__", "__getstate__")


def watch_attributes() -> None:
    """Once: see `watch_modules`."""
    if nn.Module.__setattr__ is not _set_attribute:
        methods = (_set_attribute, _delete_attribute, get_attribute, _initialise, _set_state, _get_state)
        for name, method in zip(_NAMES, methods, strict=True):
            setattr(nn.Module, name, method)


def count_batches(change: int) -> None:
    global _batches
    with lock:
        _batches += change


def _after_fork() -> None:
    """Batches of other threads do not go on in the child: what they have hidden is put back."""
    lock._at_fork_reinit()  # type: ignore[attr-defined]
    if not writing._is_owned():  # type: ignore[attr-defined]
        writing._at_fork_reinit()  # type: ignore[attr-defined]
    for key, slots in list(hidden.items()):
        mine = [slot for slot in slots if slot.owner.is_mine()]
        if mine:
            hidden[key] = mine
        else:
            del hidden[key]
            place(slots[0].module, slots[0].name, slots[0].base)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
