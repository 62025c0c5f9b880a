"""Looking at what a function does, without a trace: it is called, and everything that it changed is put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from foldloom.tracing.mutation.guards import variables_of
from foldloom.tracing.scope import recording_paused
from foldloom.tracing.weights import module_of

_TABLES = ("_parameters", "_buffers", "_modules")


@contextmanager
def looking_at(function: Any) -> Iterator[None]:
    """Random numbers drawn within are drawn again after it. Buffers and attributes of the modules that the function is, or finds around it,
    are as before."""
    whole = module_of(function)
    around = [found for found in variables_of(function).values() if isinstance(found, torch.nn.Module)]
    found = {id(part): part for module in ([whole] if whole is not None else []) + around for part in module.modules()}
    parts = [_Part(part) for part in found.values()]
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        with recording_paused(), torch.no_grad():
            for part in parts:
                part.restore()


class _Part:
    """A module as it was: its attributes, and the numbers in its buffers."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module, self._kind = module, type(module)
        self._attributes = dict(vars(module))
        self._tables = {name: dict(vars(module)[name]) for name in _TABLES}
        buffers = [buffer for buffer in module._buffers.values() if buffer is not None]
        self._buffers = [(buffer, buffer.clone()) for buffer in buffers if not buffer.is_inference()]

    def restore(self) -> None:
        for buffer, value in self._buffers:
            # Writing what is there already would count as a change to autograd; and batch norm changes no version.
            if not torch.equal(buffer, value):
                buffer.copy_(value)
        if type(self._module) is not self._kind:
            return  # a lazy module that knows its sizes by now
        attributes = vars(self._module)
        _put(attributes, self._attributes)
        for name, table in self._tables.items():
            _put(attributes[name], table)


def _put(now: dict[str, Any], before: dict[str, Any]) -> None:
    if len(now) != len(before) or any(now.get(name) is not value for name, value in before.items()):
        now.clear()
        now.update(before)
