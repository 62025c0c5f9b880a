"""Which examples have seeded torch's generator: what they draw from then on is theirs.

An example that only draws takes the next numbers, as in a loop, and the one after it goes on from there. From a generator alone the two
cannot be told apart where the seed is the one that it had before. So `torch.manual_seed` and its kin are watched, which all call
the generator that `torch.random` knows.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from greenlet import getcurrent

_SEED = slice(0, 8)
"""Where the state of a generator has its seed."""


class Drawing(Protocol):
    """A fiber, as those know it who keep its random numbers."""

    has_seeded: bool
    states_seen: set[bytes]
    has_stream: bool


class _WatchedGenerator:
    """The default generator, as `torch.random` uses it."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def get_state(self) -> torch.Tensor:
        state = self._generator.get_state()
        fiber: Any = getcurrent()
        if not getattr(fiber, "has_seeded", True):
            fiber.states_seen.add(_bytes(state))
        return state

    def set_state(self, state: torch.Tensor) -> torch.Generator:
        _note(_bytes(state))
        return self._generator.set_state(state)

    def manual_seed(self, seed: int) -> torch.Generator:
        found = self._generator.manual_seed(seed)
        _note(_bytes(self._generator.get_state()))
        return found

    def seed(self) -> int:
        found = self._generator.seed()
        _note(_bytes(self._generator.get_state()))
        return found


def _bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


_seeds = {b""}
"""The last seed that was set where it is watched."""


def _note(state: bytes) -> None:
    _seeds.clear()
    _seeds.add(state[_SEED])
    fiber: Any = getcurrent()
    if hasattr(fiber, "has_seeded"):
        # What `fork_rng` puts back is no seed.
        fiber.has_seeded = state not in fiber.states_seen


def has_seeded(fiber: Drawing, before: bytes, now: bytes) -> bool:
    """Whether a fiber has seeded the generator itself, of which these are the states when others were last at it and now."""
    return fiber.has_seeded or (before[_SEED] != now[_SEED] and now[_SEED] not in _seeds)


def watch_seeding() -> None:
    """From the first recording on."""
    watched = vars(torch.random)["default_generator"]
    if not isinstance(watched, _WatchedGenerator):
        setattr(torch.random, "default_generator", _WatchedGenerator(watched))  # noqa: B010
