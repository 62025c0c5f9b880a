"""A moment of a training as files, and back: weights, optimiser, schedule, progress, and for each process its random numbers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from foldloom.errors import RunError
from foldloom.training.progress import Progress
from foldloom.training.saving.checkpoints import Checkpoint, DamagedCheckpointError, Files
from foldloom.training.saving.states import packed, tensor_bytes, tensors_in, unpacked
from foldloom.training.saving.weights import fit, set_weights, weights_of

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Parts:
    """What learns."""

    model: nn.Module
    optimizer: Any
    schedule: Any


def snapshot(parts: Parts, progress: Progress, rank: int) -> tuple[Files, Files]:
    """The files that one process writes for all, and those of this one."""
    training = {
        "optimizer": parts.optimizer.state_dict(),
        "schedule": parts.schedule.state_dict(),
        "progress": progress.state(),
    }
    of_all = {WEIGHTS: tensor_bytes(weights_of(parts.model)), **packed(training, "training")}
    return of_all, packed(_random_state(), _random_name(rank))


def restore(checkpoint: Checkpoint, parts: Parts, rank: int, processes: int) -> Progress:
    """Everything as it was then."""
    begun_by = checkpoint.about.get("processes")
    if begun_by != processes:
        raise RunError(
            f"the training was begun by {begun_by} processes, and {processes} cannot go on with it exactly: "
            f"write `torchrun --nproc-per-node {begun_by} -m foldloom train ...`"
        )
    try:
        return _restored(checkpoint.files, parts, rank)
    except RunError as error:
        raise DamagedCheckpointError(f"{checkpoint.path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise DamagedCheckpointError(
            f"{checkpoint.path} is not what a training of this version wrote: {error!r:.300}"
        ) from error


def _restored(files: Files, parts: Parts, rank: int) -> Progress:
    weights = tensors_in(files[WEIGHTS])
    fit(parts.model, weights, WEIGHTS)
    training = unpacked(files, "training")
    progress = Progress.restored(training["progress"])
    _check_alike(training["schedule"], parts.schedule.state_dict(), "the schedule")
    _check_optimizer(training["optimizer"], parts.optimizer)
    random_state = unpacked(files, _random_name(rank))
    # All of it has been looked at: what follows changes things.
    set_weights(parts.model, weights)
    parts.optimizer.load_state_dict(training["optimizer"])
    parts.schedule.load_state_dict(training["schedule"])
    _set_random_state(random_state)
    return progress


def _check_alike(given: Any, fresh: Any, name: str) -> None:
    """The same fields, and values of the same kinds."""
    if isinstance(fresh, dict):
        if not isinstance(given, dict) or given.keys() != fresh.keys():
            raise ValueError(f"{name} has other fields")
        for key, value in fresh.items():
            _check_alike(given[key], value, f"{name}: {key!r}")
    elif isinstance(fresh, list | tuple):
        if type(given) is not type(fresh) or len(given) != len(fresh):
            raise ValueError(f"{name} has another length")
        for number, (one, other) in enumerate(zip(given, fresh, strict=True)):
            _check_alike(one, other, f"{name}, {number}")
    elif isinstance(fresh, int | float) and not isinstance(fresh, bool):
        if not isinstance(given, int | float) or isinstance(given, bool):
            raise ValueError(f"{name} is no number")
    elif fresh is not None and type(given) is not type(fresh):
        raise ValueError(f"{name} is {type(given).__name__}")


def _check_optimizer(given: Any, optimizer: Any) -> None:
    _check_alike(given["param_groups"], optimizer.state_dict()["param_groups"], "the optimiser")
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    names = {tuple(state) for state in given["state"].values()}
    if len(names) > 1:
        raise ValueError("the optimiser remembers different things of different weights")
    for number, state in given["state"].items():
        for name, value in state.items():
            own = weights[number]
            if not isinstance(value, torch.Tensor):
                continue
            if value.shape not in (own.shape, torch.Size()) or not bool(torch.isfinite(value).all()):
                raise ValueError(f"what the optimiser remembers of a weight is not like it: {name!r}")


def _random_name(rank: int) -> str:
    return f"random-{rank}"


def _random_state() -> dict[str, Any]:
    """Of every source that code of a model may draw from."""
    name, keys, *rest = np.random.get_state()
    state = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.array(keys).view(np.int32)), *rest),
        "torch": torch.get_rng_state(),
    }
    return state | ({"cuda": torch.cuda.get_rng_state_all()} if torch.cuda.is_available() else {})


def _set_random_state(state: dict[str, Any]) -> None:
    name, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((name, keys.numpy().view(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
