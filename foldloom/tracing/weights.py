"""Names of weights: how a recorded function finds the parameters that it was given.

A weight has a name of its own, or is named by its path in the module that was recorded, so that a recording made in one process
runs with the weights of another. What is computed from weights alone (``weight.t()``) is a *derived* weight: the same for
all members of a step, computed once in a run, and named by how it is computed.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from foldloom.errors import CellMismatchError
from foldloom.pytrees import unflatten
from foldloom.tracing.functions.calls import SHARED, call_of_template, function_named, name_of, static
from foldloom.tracing.mutation.guards import Guards
from foldloom.tracing.rules.base import DRAWS
from foldloom.tracing.scope import Mode, in_mode, recording_paused

_name_of_weight: Any = WeakIdKeyDictionary()
_weight_of_name: weakref.WeakValueDictionary[str, torch.Tensor] = weakref.WeakValueDictionary()


def name_of_weight(weight: torch.Tensor) -> str:
    name: str | None = _name_of_weight.get(weight)
    if name is None:
        name = f"weight#{uuid.uuid4().hex}"
        _name_of_weight[weight] = name
        _weight_of_name[name] = weight
    return name


def named_by_path(names: Mapping[str, str], shared: Any) -> Hashable:
    """A weight's name, or how it is derived, with names replaced."""
    if isinstance(shared, str):
        return names.get(shared, shared)
    function, template, sources, mode = shared
    return function, template, tuple([named_by_path(names, source) for source in sources]), mode


def module_of(function: object) -> torch.nn.Module | None:
    """The module that a function is, or whose method it is: where its weights and its cells have their names."""
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


def paths_of(module: torch.nn.Module) -> dict[str, str]:
    """For each weight that has a name, its path in the module."""
    return {
        name: path
        for path, weight in module.named_parameters(remove_duplicate=False)
        if (name := _name_of_weight.get(weight)) is not None
    }


class DerivedWeights:
    """The derived weights of one recording."""

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._tensor_of_name: dict[Hashable, torch.Tensor] = {}
        self._name_of_tensor: dict[int, tuple[Hashable, torch.Tensor, int]] = {}
        """By identity: the name, the tensor, and its version when it was computed."""

    def is_derived(self, value: object) -> bool:
        """Whether a tensor was computed from weights alone, and has not been changed in place since."""
        known = self._name_of_tensor.get(id(value))
        return known is not None and known[1]._version == known[2]

    def name_of(self, weight: torch.Tensor) -> Hashable:
        """The name of any weight, derived or not."""
        return self._name_of_tensor[id(weight)][0] if self.is_derived(weight) else name_of_weight(weight)

    def derive(self, function: Any, nesting: Any, leaves: list[Any], mode: Mode | None) -> Any:
        """What a function of weights alone returns: computed once, for all examples."""
        weights = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        marks = tuple([SHARED if isinstance(leaf, torch.Tensor) else static(leaf) for leaf in leaves])
        name = (name_of(function), (nesting, marks), tuple([self.name_of(weight) for weight in weights]), mode)
        known = self._tensor_of_name.get(name)
        if known is not None and self.is_derived(known):
            return known
        args, kwargs = unflatten(nesting, iter(leaves))
        with recording_paused():
            made = function(*args, **kwargs)
        if isinstance(made, torch.Tensor) and function not in DRAWS:
            self._tensor_of_name[name] = made
            self._name_of_tensor[id(made)] = name, made, made._version
            self._guards.guard_tensors(weights)
        return made

    def pass_on(self, weights: Weights) -> None:
        """Tell the weights of a run what has been computed already."""
        for name, tensor in self._tensor_of_name.items():
            weights.remember(name, tensor)


class Weights:
    """The weights of one run: found by name, derived ones computed once."""

    def __init__(self, owner: object) -> None:
        module = module_of(owner)
        self._by_path = {} if module is None else dict(module.named_parameters())
        self._derived: dict[Hashable, torch.Tensor] = {}

    def remember(self, name: Hashable, tensor: torch.Tensor) -> None:
        """A derived weight that has been computed already."""
        self._derived[name] = tensor

    def __getitem__(self, shared: Any) -> torch.Tensor:
        if isinstance(shared, str):
            found = _weight_of_name.get(shared)
            found = self._by_path.get(shared) if found is None else found
            if found is None:
                raise CellMismatchError(
                    f"the plan uses a weight {shared!r} that is not here. Run a plan with the model it was recorded with: "
                    "`fl.batch(model).run(plan)`, where the plan's recordings came from `fl.record(model, example)`"
                )
            return found
        known = self._derived.get(shared)
        if known is None:
            function, template, sources, mode = shared
            call = call_of_template(function_named(function), template, (), [self[name] for name in sources], ())
            with in_mode(mode):
                known = self._derived[shared] = call.apply()
        assert known is not None
        return known
