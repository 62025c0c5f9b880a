"""From a fiber to the hub and back: whose torch state holds.

A fiber that pauses returns to what held around the outermost `run`, so that only differences from that have to be noted, and there usually
are none. Signals are held back meanwhile (`interrupts.py`).
"""

from __future__ import annotations

import sys
import warnings
from asyncio.events import _get_running_loop, _set_running_loop
from typing import TYPE_CHECKING, Any

from torch import is_grad_enabled

from foldloom.torch_private import (
    DeviceContext,
    count_function_modes,
    current_transform_level,
    pop_function_mode,
    pop_transform,
    push_function_mode,
    push_transform,
    set_grad_enabled,
)
from foldloom.tracing.fast_path import answers_are
from foldloom.tracing.fibers.torch_state import OUTLINE, Outputs, TorchState, cross_inference_mode, streams

if TYPE_CHECKING:
    from foldloom.tracing.fibers.tasks import Fiber


class Crossing:
    """``home`` is the state around the outermost `run`."""

    def __init__(self, home: TorchState) -> None:
        self.home = home
        self._home_level = current_transform_level() or 0
        self._outputs = Outputs.now()
        self._stdout, self._stderr, self._filters = self._outputs[:3]
        self.streams = streams()
        self._loop = _get_running_loop()

    def leave(self, fiber: Fiber) -> None:
        """To what holds in the hub."""
        home = self.home
        here = answers_are(OUTLINE, home.outline)
        if here:
            # By far the most frequent differences, in a tenth of the time.
            grad, count = is_grad_enabled(), count_function_modes()
            if count or grad is not home.grad:
                modes = [pop_function_mode()] if count == 1 else [pop_function_mode() for _ in range(count)]
                if grad is not home.grad:
                    set_grad_enabled(home.grad)
                fiber.grad, fiber.function_modes = grad, modes
                here = type(modes[0]) is not DeviceContext if count == 1 else DeviceContext not in map(type, modes)
        if not here or not (home.plain or home.holds()):
            self._take_up_modes(fiber)
            fiber.state = TorchState.capture()
            fiber.layers = self.pop_layers()
            fiber.guard = cross_inference_mode(home.inference)
            home.apply()
        for stream in self.streams:
            stream.part(fiber)
        loop = _get_running_loop()
        if loop is not self._loop:
            fiber.loop = loop
            _set_running_loop(self._loop)
        if sys.stdout is not self._stdout or warnings.filters is not self._filters or sys.stderr is not self._stderr:
            fiber.outputs = Outputs.now()
            self._outputs.apply()

    def come_back(self, fiber: Fiber) -> None:
        """To what held where the fiber paused."""
        if fiber.outputs is not None:
            fiber.outputs.apply()
            fiber.outputs = None
        if fiber.loop is not None:
            _set_running_loop(fiber.loop)
            fiber.loop = None
        if fiber.has_stream:
            for stream in self.streams:
                stream.join(fiber)
        if fiber.state is not None:
            if fiber.guard is not None:
                fiber.guard.__exit__(None, None, None)
            while fiber.layers:
                push_transform(fiber.layers.pop())
            fiber.state.apply()
            fiber.state = fiber.guard = None
        if fiber.grad is not None:
            self._take_up_modes(fiber)

    def _take_up_modes(self, fiber: Fiber) -> None:
        if fiber.grad is not None:
            if fiber.grad is not self.home.grad:
                set_grad_enabled(fiber.grad)
            while fiber.function_modes:
                push_function_mode(fiber.function_modes.pop())
            fiber.grad = None

    def pop_layers(self) -> list[Any]:
        """The layers of `torch.func` above those that were there around the outermost `run`, taken away."""
        layers: list[Any] = []
        while (current_transform_level() or 0) > self._home_level:
            layers.append(pop_transform())
        return layers

    def forget(self, fiber: Fiber) -> None:
        """The fiber's tasks are done."""
        if fiber.has_stream:
            for stream in self.streams:
                stream.give_back(fiber)
            fiber.has_stream = False
