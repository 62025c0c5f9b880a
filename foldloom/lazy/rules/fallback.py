"""What runs where no rule does: `torch.vmap`, and one by one where that cannot."""

from __future__ import annotations

from typing import Any

import torch

from foldloom.lazy.calls import Call, leaves_of, rebuilt


class Fallback:
    """The batched form of any call. ``how`` says which way it went, once it has run."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.how = "vmap"

    def __call__(self, *blocks: Any) -> Any:
        if self.how == "vmap":
            try:
                return torch.vmap(self._call.apply, randomness="different")(*blocks)
            except Exception:  # vmap has many ways of saying that it cannot; if the call itself fails, so will the loop
                self.how = "one by one"
        return self._one_by_one(blocks)

    def _one_by_one(self, blocks: tuple[Any, ...]) -> Any:
        outputs: list[list[torch.Tensor]] = []
        nesting: Any = None
        for member in range(len(blocks[0])):
            leaves: list[Any] = []
            # A copy of each operand: the call may change it.
            nesting = leaves_of(self._call.apply(*[block[member] for block in blocks]), leaves)
            outputs.append(leaves)
        stacked = [torch.stack(column) for column in zip(*outputs, strict=True)]
        return rebuilt(nesting, iter(stacked))
