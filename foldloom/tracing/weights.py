"""Weights of a run: found by name, and what is computed from them alone computed once.

What is computed from weights alone (``weight.t()``) is a *derived* weight: the same for all members of a step, computed once in a run, and
named by how it is computed (`weight_names.py`).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection
from itertools import chain
from typing import Any, NamedTuple

import torch

from foldloom.errors import CellMismatchError
from foldloom.execution.kernels import spare_hooks
from foldloom.pytrees import flatten, unflatten
from foldloom.tracing.functions.calls import SHARED, Call, call_of_template, function_named, name_of, static
from foldloom.tracing.mutation.guards import Guards
from foldloom.tracing.mutation.views import id_of_memory, is_strided
from foldloom.tracing.rules.base import DRAWS
from foldloom.tracing.scope import Mode, in_mode, recording_paused
from foldloom.tracing.values.lazy_tensor import Given, LazyTensor
from foldloom.tracing.weight_names import DerivedName, derived_name, known_name, name_of_weight, weight_named


def module_of(function: object) -> torch.nn.Module | None:
    """The module that a function is, or whose method it is: where its weights and its cells have their names."""
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


def paths_of(module: torch.nn.Module) -> dict[str, str]:
    """For each weight that has a name, its path in the module."""
    return {
        name: path
        for path, weight in chain(
            module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
        )
        if (name := known_name(weight)) is not None
    }


class Derived(Given):
    """Stands for the recorder in handles of derived weights. A handle is used as the weight that it stands for, until its example changes
    it in place: then it stands for a value of that example."""

    __slots__ = ("example",)

    def __init__(self, recorder: Any, example: int) -> None:
        super().__init__(recorder)
        self.example = example
        """Whose handle it is."""

    def rows_of(self, handle: LazyTensor) -> list[LazyTensor]:
        return list(self.recorder.call_function(torch.unbind, (handle,), None))


_NEVER_CHANGES = -1
"""Stands for the version of a tensor that was made in inference mode, which has none."""


class _Made(NamedTuple):
    """A derived weight."""

    name: DerivedName
    tensor: torch.Tensor
    version: int
    """When it was computed."""
    shares_with: int | None
    """Which of the arguments it is a view of."""


class DerivedWeights:
    """The derived weights of one recording."""

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._result_of_name: dict[DerivedName, Any] = {}
        """What was computed: a tensor, or a tuple of tensors."""
        self._made: dict[int, _Made] = {}
        """By the identity of the tensor, which lives as long."""
        self._made_in: dict[int, Counter[DerivedName]] = {}
        """For each example the names of what it computed, in order, and how often."""

    def forget(self) -> None:
        """A weight has been changed: what was computed from it stays what it is, and is computed anew from now on."""
        self._result_of_name, self._made, self._made_in = {}, {}, {}

    def is_derived(self, value: object) -> bool:
        """Whether a tensor was computed from weights alone, and has not been changed in place since."""
        known = self._made.get(id(value))
        # Asking whether it is made in inference mode takes longer than all else here.
        return known is not None and (known.version == _NEVER_CHANGES or known.tensor._version == known.version)

    def shares_with(self, tensor: torch.Tensor) -> int | None:
        """Which of the arguments that it was computed from a derived weight is a view of."""
        return self._made[id(tensor)].shares_with

    def name_of(self, weight: torch.Tensor) -> str | DerivedName:
        """The name of any weight, derived or not."""
        if self.is_derived(weight):
            return self._made[id(weight)].name
        name = name_of_weight(weight)
        is_frozen = id(weight) in self._guards.frozen
        return derived_name(name_of(torch.Tensor.detach), _ALONE, (name,), None) if is_frozen else name

    def derive(self, function: Any, nesting: Any, leaves: list[Any], mode: Mode | None, example: int) -> Any:
        """What a function of weights alone returns: computed once, for all examples."""
        name, result = self._derive(function, nesting, leaves, mode)
        if name in self._result_of_name:
            self._made_in.setdefault(example, Counter())[name] += 1
        return result

    def _derive(self, function: Any, nesting: Any, leaves: list[Any], mode: Mode | None) -> tuple[DerivedName, Any]:
        weights = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        marks = tuple([SHARED if isinstance(leaf, torch.Tensor) else static(leaf) for leaf in leaves])
        name = derived_name(name_of(function), (nesting, marks), tuple(map(self.name_of, weights)), mode)
        known = self._result_of_name.get(name)
        is_known = known is not None and all(map(self.is_derived, _items_of(known)))
        if is_known and self.shares_with(_items_of(known)[0]) is None:
            return name, known
        args, kwargs = unflatten(nesting, iter(leaves))
        spare_hooks(weights)
        with recording_paused():
            if is_known:  # a view of a weight, which examples get as it is: each call returns an object of its own
                result = function(*args, **kwargs)
                for item, before in zip(_items_of(result), _items_of(known), strict=True):
                    self._made[id(item)] = self._made[id(before)]._replace(tensor=item, version=_version_of(item))
                self._result_of_name[name] = result
                return name, result
            before = torch.get_rng_state()
            result = function(*args, **kwargs)
            if function not in DRAWS and torch.equal(before, torch.get_rng_state()):
                self._remember(name, result, weights)
        return name, result

    def _remember(self, name: DerivedName, result: Any, weights: list[torch.Tensor]) -> None:
        items = _items_of(result)
        if not all(is_strided(item) and not any(item is weight for weight in weights) for item in items):
            return
        self._result_of_name[name] = result
        memory = [id_of_memory(weight) if is_strided(weight) else None for weight in weights]
        for number, item in enumerate(items):
            name_of_item = name if item is result else _name_of_item(name, number)
            shares = id_of_memory(item)
            shares_with = memory.index(shares) if shares in memory else None
            self._made[id(item)] = _Made(name_of_item, item, _version_of(item), shares_with)
        self._guards.guard_tensors(weights)

    def change_of(self, tensor: torch.Tensor, example: int, result: torch.Tensor | None) -> ChangeOfDerived | None:
        """What an example has computed with a derived weight that it changes in place. ``result`` is what the change makes of it, if that is a
        derived weight, too. None if it computed the same twice, and it is not known which of the two this is."""
        made_in = self._made_in.get(example, Counter())
        name = self._made[id(tensor)].name if id(tensor) in self._made else None
        if name is None or made_in.get(name if name in made_in else _whole_of(name), 2) > 1:
            return None
        memory = id_of_memory(tensor)
        weights = Weights(None)
        self.pass_on(weights)
        spoiled: set[DerivedName] = set()
        own = None if result is None or id(result) not in self._made else self._made[id(result)].name
        for made in made_in:
            before = any(_is_among(source, spoiled) for source in made.sources)
            if before or (made != own and _saves(made, weights, memory)):
                spoiled.add(made)
        items = [made for made in self._made.values() if _is_among(made.name, made_in)]
        return ChangeOfDerived(
            frozenset([made.name for made in items if _is_among(made.name, spoiled)]),
            frozenset([made.name for made in items if id_of_memory(made.tensor) == memory]),
        )

    def pass_on(self, weights: Weights) -> None:
        """Tell the weights of a run what has been computed already."""
        for name, result in self._result_of_name.items():
            weights.remember(name, result)


class ChangeOfDerived(NamedTuple):
    """A derived weight was changed in place by an example."""

    spoiled: frozenset[DerivedName]
    """What the example computed from it, through which backward raises."""
    changed: frozenset[DerivedName]
    """What lies in the memory that was changed."""


def _whole_of(name: DerivedName) -> Any:
    """What one of several results is taken of; any other name as it is."""
    return name.sources[0] if name.template[0] == _ITEM else name


def _is_among(name: str | DerivedName, names: Collection[str | DerivedName]) -> bool:
    return name in names or (isinstance(name, DerivedName) and _whole_of(name) in names)


def _saves(name: DerivedName, weights: Weights, memory: int) -> bool:
    """Whether a function of weights saves for backward what lies in this memory, or its result that does."""
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    call = weights.call_of(name)
    with recording_paused(), in_mode(name.mode), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        again = call.apply()
    found = {id_of_memory(tensor) for tensor in kept if is_strided(tensor)}
    pairs = zip(_items_of(weights[name]), _items_of(again), strict=True)
    return memory in found or any(id_of_memory(old) == memory and id_of_memory(new) in found for old, new in pairs)


def _version_of(tensor: torch.Tensor) -> int:
    return _NEVER_CHANGES if tensor.is_inference() else tensor._version


def _items_of(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) and result else (result,)


_ITEM = flatten(((None, 0), {}), [])
_ALONE = flatten(((None,), {}), []), (SHARED,)


def _name_of_item(name: DerivedName, number: int) -> DerivedName:
    """One of several results, derived from all of them."""
    return derived_name(name_of(operator.getitem), (_ITEM, (SHARED, static(number))), (name,), None)


class Weights:
    """The weights of one run: found by name, derived ones computed once."""

    def __init__(self, owner: object) -> None:
        module = module_of(owner)
        self._by_path: dict[str, torch.Tensor] = {}
        if module is not None:
            self._by_path = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._derived: dict[DerivedName, Any] = {}

    def remember(self, name: DerivedName, result: Any) -> None:
        """A derived weight that has been computed already, or a tuple of them."""
        self._derived[name] = result

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, str):
            found = weight_named(name)
            found = self._by_path.get(name) if found is None else found
            if found is None:
                raise CellMismatchError(
                    f"the plan uses a weight {name!r} that is not here. Run a plan with the model it was recorded with: "
                    "`fl.batch(model).run(plan)`, where the plan's recordings came from `fl.record(model, example)`"
                )
            return found
        known = self._derived.get(name)
        if known is None:
            call = self.call_of(name)
            try:
                with in_mode(name.mode):
                    known = self._derived[name] = call.apply()
            except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
                raise CellMismatchError(
                    f"the plan uses a weight that {name.function} makes of others, which fails with these ones: "
                    f"{' '.join(str(error).split())[:300]}. Run a plan with the model it was recorded with"
                ) from error
        return known

    def call_of(self, name: DerivedName) -> Call:
        """The call that computes a derived weight."""
        weights = [self[source] for source in name.sources]
        return call_of_template(function_named(name.function), name.template, (), weights, ())
