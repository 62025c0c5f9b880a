"""Attributes of modules that examples write: each example has its own.

In a loop an example finds what the one before left. Here examples take turns before they are done. So while one is away, what it
has written is put away with it, and the attribute is *hidden*: taken off the module, so that whoever reads it comes by
`nn.Module.__getattr__`, which Python calls when it finds nothing. There an example that has not written the attribute itself waits until all
earlier ones are done, and then finds what they left. One that writes first, as nearly all do, waits for nobody.

Which attributes to hide is read from the code that the function can reach (`reach.py`), when a batch first waits. An attribute that
was only read the last time is handed out at once; if an earlier example writes it after that, this is an error and
no longer a guess. Attributes that are written without their names in the code (`setattr`) are noticed when it happens.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from foldloom.errors import SharedStateError
from foldloom.execution.kernels import is_only_thread
from foldloom.tracing.fibers.reachable import OF_TORCH, Reachable
from foldloom.tracing.fibers.turns import earlier_unfinished, later_started, path_of
from foldloom.tracing.scope import scope, user_line

if TYPE_CHECKING:
    from foldloom.tracing.fibers.tasks import Fiber, Hub

Placed = tuple[dict[str, Any], Any] | None
"""An attribute's value and the dict it is in: the module's own, or that of its parameters, buffers or parts. None if there is none."""
Key = tuple[int, str]
_HOMES = ("_parameters", "_buffers", "_modules")

lock = threading.RLock()
_LONGEST_WAIT = 600
writing = threading.RLock()
"""Held by a batch from the first attribute that it writes to its end: modules are shared by threads, values of an example are not."""
hidden: dict[Key, list[Slot]] = {}
"""Attributes that batches guard, in all threads."""
guarded: Counter[str] = Counter()
"""Names of attributes for which `__getattr__` asks, with the number of batches that do."""
_quiet: weakref.WeakKeyDictionary[type, set[str]] = weakref.WeakKeyDictionary()
"""Attributes, by class, that were read in the last batch that read them and written by nobody."""


class Slot:
    """An attribute of a module in one batch."""

    __slots__ = ("base", "is_guarded", "key", "module", "name", "owner", "quiet_readers", "was_read", "written")

    def __init__(self, owner: Journal, module: nn.Module, name: str) -> None:
        self.owner, self.module, self.name = owner, module, name
        self.key: Key = (id(module), name)
        others = hidden.get(self.key)
        self.base: Placed = others[0].base if others else locate(module, name)
        """What it was before those examples wrote it that are under way."""
        self.is_guarded = name != "training" and not _has_default(type(module), name)
        """Whether reading can be noticed."""
        self.written = self.was_read = False
        self.quiet_readers: list[tuple[int, ...]] = []
        """Examples that were given the base value before all earlier ones were done."""

    @property
    def label(self) -> str:
        return f"attribute `{self.name}` of {type(self.module).__name__}"

    @property
    def is_quiet(self) -> bool:
        return not self.written and self.name in _quiet.get(type(self.module), ())

    def rest(self) -> None:
        """As it is while nobody runs who has a value of his own. Torch's own dicts are read by kernels, and reading them is always noticed."""
        is_plain = self.base is None or self.base[0] is self.module.__dict__
        place(self.module, self.name, None if is_plain and self.is_guarded else self.base)


def locate(module: nn.Module, name: str) -> Placed:
    attributes = module.__dict__
    if name in attributes:
        return attributes, attributes[name]
    for home in _HOMES:
        entries = attributes.get(home)
        if entries is not None and name in entries:
            return entries, entries[name]
    return None


def place(module: nn.Module, name: str, placed: Placed) -> None:
    if placed is None or name not in placed[0]:
        now = locate(module, name)
        if now is not None:
            now[0].pop(name, None)
    if placed is not None:
        placed[0][name] = placed[1]


def _put_in_order(attributes: dict[str, Any], order: list[str]) -> None:
    """As they would be if none had been taken off. Not while other threads might look."""
    order = [name for name in order if name in attributes]
    if not is_only_thread() or list(attributes)[: len(order)] == order:
        return
    moved = next(n for n, (one, other) in enumerate(zip(attributes, order, strict=False)) if one != other)
    for name in (*order[moved:], *[name for name in attributes if name not in order]):
        attributes[name] = attributes.pop(name)


def _has_default(kind: type, name: str) -> bool:
    """Whether Python finds something in the class when the module itself has no such attribute."""
    return any(name in vars(base) for base in kind.__mro__)


def _is_descriptor(kind: type, name: str) -> bool:
    """A property and its like: writing it calls a function, and what that writes is seen by itself."""
    return any(hasattr(type(vars(base)[name]), "__set__") for base in kind.__mro__ if name in vars(base))


def unguarded_names(reach: Reachable) -> list[str]:
    """Attributes that the code stores and whose readers cannot be noticed: their class has a value for them, or they may be weights of
    torch's modules, a call of which is one operation and asks for no attribute."""
    kinds = {type(module) for module in reach.modules.values() if not type(module).__module__.startswith("torch.")}
    names = reach.facts.attributes - OF_TORCH
    of_torch = [module for module in reach.modules.values() if type(module).__module__.startswith("torch.")]
    return [
        *[name for kind in kinds for name in names if _has_default(kind, name) and not _is_descriptor(kind, name)],
        *[name for module in of_torch for name in names if name in module._parameters],
    ]


class Journal:
    """What the examples of one batch write to modules."""

    def __init__(self, fibers: Hub) -> None:
        self._fibers = fibers
        self.slots: dict[Key, Slot] = {}
        self.is_off = False
        """Examples run one at a time: as in a loop, nothing needs to be kept apart."""
        self._begun = False
        self._names: frozenset[str] = frozenset()
        self._modules: dict[int, nn.Module] = {}
        self._may_write = False
        self._orders: list[tuple[nn.Module, list[str]]] = []
        """Modules with hidden attributes, and the names of all their attributes in order."""
        self._missed: dict[Key, tuple[nn.Module, list[tuple[int, ...]]]] = {}
        """Attributes that were asked for and not found, and by whom."""
        self.touched: dict[Key, nn.Module] = {}
        """Modules whose attributes were written, by whomever and whether that is kept apart or not."""
        self.born: dict[int, Any] = {}
        """Modules made in this batch: they are of the example that made them."""

    def is_mine(self) -> bool:
        """Whether this is the thread in which the examples run."""
        return self._fibers.is_mine()

    # From the first time that an example waits.

    def begin(self, fiber: Fiber, names: Iterable[str], changed: Iterable[str], modules: dict[int, nn.Module]) -> None:
        """Hide what may be written: ``names`` are stored by the code, ``changed`` hold lists, dicts and the like that it changes."""
        self._begun = True
        self._modules = modules
        self._names = frozenset(names) - OF_TORCH
        changed = frozenset(changed) - self._names - OF_TORCH
        with lock:
            for module in modules.values():
                attributes = module.__dict__
                order = list(attributes)
                found = self._names & attributes.keys()
                found |= {name for name in changed & attributes.keys() if not isinstance(attributes[name], nn.Module)}
                for home in _HOMES:
                    entries = attributes.get(home)  # modules of torch.jit may keep theirs elsewhere
                    if entries is not None:
                        found |= self._names.intersection(entries.keys())
                for name in found:
                    if not _is_descriptor(type(module), name):
                        self._slot(module, name)
                if found:
                    self._orders.append((module, order))
            self._names |= frozenset([slot.name for slot in self.slots.values()])
            guarded.update(self._names)
            for slot in self.slots.values():
                hidden.setdefault(slot.key, []).append(slot)
                if slot not in fiber.view:
                    slot.rest()

    def end(self, last: int | None) -> None:
        """Leave on the modules what a loop would: what the last example that wrote it left, or the last up to one that failed."""
        with lock:
            guarded.subtract(self._names)
            for name in self._names:
                if guarded[name] <= 0:
                    del guarded[name]
            for slot in self.slots.values():
                if self._begun:
                    self._put_back(slot, last)
            for module, order in self._orders:
                _put_in_order(module.__dict__, order)
        self.slots = {}
        if self._may_write:
            self._may_write = False
            writing.release()

    def settle(self, settled: Callable[[Any], Any]) -> None:
        """Replace what the examples leave by ``settled`` of it: before anybody else may see it or write there."""
        kept_apart = self.slots if self._begun and not self.is_off else {}
        left = self._fibers.left
        for slot in kept_apart.values():
            if slot in left:
                index, placed = max(left[slot], key=lambda entry: entry[0])
                left[slot] = [(index, None if placed is None else (placed[0], settled(placed[1])))]
        for (number, name), module in self.touched.items():
            placed = None if (number, name) in kept_apart else locate(module, name)
            if placed is not None and not isinstance(placed[1], (nn.Module, nn.Parameter)):
                placed[0][name] = settled(placed[1])

    def _put_back(self, slot: Slot, last: int | None) -> None:
        left = [entry for entry in self._fibers.left.get(slot, ()) if last is None or entry[0] <= last]
        others = hidden.get(slot.key, [])
        if slot in others:
            others.remove(slot)
        if left:
            slot.base = max(left, key=lambda entry: entry[0])[1]
        for other in others:  # in other threads: it stays hidden
            other.base = slot.base
        if not others:
            hidden.pop(slot.key, None)
            if left or locate(slot.module, slot.name) is None:  # else a cell has written it
                place(slot.module, slot.name, slot.base)
        quiet = _quiet.setdefault(type(slot.module), set())
        if slot.written:
            quiet.discard(slot.name)
        elif slot.was_read:
            quiet.add(slot.name)

    def _slot(self, module: nn.Module, name: str) -> Slot:
        key = (id(module), name)
        slot = self.slots.get(key)
        if slot is None:
            slot = self.slots[key] = Slot(self, module, name)
        return slot

    def forget_before(self, index: int | None) -> None:
        """Examples before this one are done: who of them has read what no longer matters."""
        for slot in self.slots.values():
            slot.quiet_readers = [reader for reader in slot.quiet_readers if index is not None and reader[0] >= index]
        for key, (module, readers) in list(self._missed.items()):
            self._missed[key] = module, [reader for reader in readers if index is not None and reader[0] >= index]

    @contextmanager
    def others_may_write(self) -> Iterator[None]:
        """While no example runs, other threads may write."""
        if not self._may_write:
            yield
            return
        writing.release()
        self._may_write = False
        try:
            yield
        finally:
            self._wait_for_other_threads()

    # In a fiber.

    def leave(self, fiber: Fiber) -> None:
        """The fiber pauses: it takes its values with it."""
        for slot in fiber.view:
            fiber.view[slot] = locate(slot.module, slot.name)
            slot.rest()

    def come_back(self, fiber: Fiber) -> None:
        for slot, placed in fiber.view.items():
            place(slot.module, slot.name, placed)

    def finish(self, fiber: Fiber, *, keep: bool) -> None:
        """The task is done. What it has written is for those that come after it; of one that was ended it is dropped."""
        if self._begun and not self.is_off:
            for slot in fiber.view:
                if keep and slot in fiber.wrote:
                    fiber.group.left.setdefault(slot, []).append((fiber.index, locate(slot.module, slot.name)))
                slot.rest()
        else:
            self.slots.clear()
        fiber.view.clear()
        fiber.wrote.clear()

    def take_over(self, fiber: Fiber, left: dict[Slot, list[tuple[int, Placed]]], last: int | None) -> None:
        """What the tasks of an inner run have written has been written by the task that called it."""
        for slot, entries in left.items():
            entries = [entry for entry in entries if last is None or entry[0] <= last]
            if entries:
                fiber.wrote.add(slot)
                fiber.view[slot] = max(entries, key=lambda entry: entry[0])[1]
                place(slot.module, slot.name, fiber.view[slot])

    def unguarded_change(self, fiber: Fiber) -> str | None:
        """What the fiber has changed though its readers cannot be noticed."""
        for slot in fiber.wrote:
            if not slot.is_guarded and not _same(locate(slot.module, slot.name), slot.base):
                return slot.label
        return None

    # Writing and reading.

    def before_write(self, fiber: Fiber, module: nn.Module, name: str) -> Slot | None:
        """What to note as written once it is; None if there is nothing to note."""
        if self.is_off or id(module) in self.born:
            return None
        slot = self.slots.get((id(module), name))
        if slot is not None and slot in fiber.wrote:
            return None
        if slot is None and ((name in OF_TORCH and name != "training") or _is_descriptor(type(module), name)):
            return None
        if not self._may_write:
            self._fibers.uninterrupted(self._wait_for_other_threads)
            self.come_back(fiber)
        if slot is None:
            slot = self._unforeseen(fiber, module, name)
        mine = path_of(fiber)
        for reader in slot.quiet_readers:
            if mine < reader and reader[: len(mine)] != mine:
                _quiet.get(type(module), set()).discard(name)
                raise _too_late(slot.label, mine, reader)
        return slot

    def _wait_for_other_threads(self) -> None:
        self._may_write = writing.acquire(timeout=_LONGEST_WAIT)
        if not self._may_write:
            raise SharedStateError(
                f"this batch writes attributes of modules, and has waited {_LONGEST_WAIT} s for one of another thread that does, too. Does "
                "that one wait for something that this thread holds?"
            )

    def note_write(self, fiber: Fiber, slot: Slot) -> None:
        slot.written = True
        fiber.wrote.add(slot)
        fiber.view[slot] = None

    def _unforeseen(self, fiber: Fiber, module: nn.Module, name: str) -> Slot:
        slot = self._slot(module, name)
        if not self._begun:
            return slot
        if slot.base is None and slot.is_guarded:
            slot.quiet_readers += self._missed.get(slot.key, (module, []))[1]
        elif slot.is_guarded and (later := later_started(fiber)) is not None:
            del self.slots[slot.key]
            raise _too_late(slot.label, path_of(fiber), later)
        with lock:
            if name not in self._names:
                self._names |= {name}
                guarded[name] += 1
            hidden.setdefault(slot.key, []).append(slot)
        self._fibers.keeps_state = True
        return slot

    def see(self, fiber: Fiber, module: nn.Module, name: str) -> Slot | None:
        """Before the fiber reads an attribute: let it find what it would in a loop."""
        if self.is_off or not self._begun or id(module) in self.born:
            return None
        slot = self.slots.get((id(module), name))
        if slot is None:
            if id(module) not in self._modules or name not in self._names:
                return None
            slot = self._slot(module, name)
            with lock:
                hidden.setdefault(slot.key, []).append(slot)
            self._fibers.keeps_state = True
        if slot not in fiber.view:
            slot.was_read = True
            if earlier_unfinished(fiber, slot):
                if slot.is_quiet:
                    slot.quiet_readers.append(path_of(fiber))
                else:
                    self._wait(fiber, slot)
            value = _value_for(fiber, slot)
            fiber.view[slot] = value
            place(module, name, value)
        return slot

    def _wait(self, fiber: Fiber, slot: Slot) -> None:
        recorder = scope.recorder
        if recorder is None:
            raise SharedStateError(
                f"a cell, a hook or a function that runs on computed values reads {slot.label}, which examples of this batch "
                f"write. Give it the value as an argument\n  at {user_line()}"
            )
        graph = recorder.graph
        example = graph.example
        while earlier_unfinished(fiber, slot):
            self._fibers.wait_for_earlier(slot)
        graph.begin(example)

    def note_missing(self, fiber: Fiber, module: nn.Module, name: str) -> None:
        self._missed.setdefault((id(module), name), (module, []))[1].append(path_of(fiber))


def _same(one: Placed, other: Placed) -> bool:
    return one is other or (one is not None and other is not None and one[1] is other[1])


def _value_for(fiber: Fiber, slot: Slot) -> Placed:
    left = [entry for entry in fiber.group.left.get(slot, ()) if entry[0] < fiber.index]
    if left:
        return max(left, key=lambda entry: entry[0])[1]
    owner = fiber.group.owner
    if owner is None:
        return slot.base
    return owner.view[slot] if slot in owner.view else _value_for(owner, slot)


def _too_late(label: str, writer: tuple[int, ...], reader: tuple[int, ...]) -> SharedStateError:
    return SharedStateError(
        f"example {writer[0]} writes {label} after example {reader[0]} has gone on without it; one by one, example {reader[0]} would have "
        "found what was written. Write it before the first value is waited for, keep it in a local variable, or return "
        f"it\n  at {user_line()}"
    )
