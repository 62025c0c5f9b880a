"""What weights have yet to receive in a backward pass: factors are noted use by use, and products taken over many rows at a time.

Why: `weight_grads`, which opens a ledger for each kind of use of a weight.
"""

from __future__ import annotations

import torch

from foldloom.torch_private import backward_pass

ENOUGH_ROWS = 256
"""Factors are held until they have this many rows: from there on, a larger product is no faster per row."""


class Ledger:
    """What a weight has yet to receive, kept apart for each backward pass."""

    def __init__(self) -> None:
        self._noted: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._totals: dict[int, tuple[torch.Tensor | None, ...]] = {}

    def note(self, left: torch.Tensor, right: torch.Tensor) -> None:
        """One use gave the factors left and right."""
        current = backward_pass()
        noted = self._noted.setdefault(current, [])
        noted.append((left, right))
        if len(left) >= ENOUGH_ROWS or sum([len(factor) for factor, _ in noted]) >= ENOUGH_ROWS:
            self._settle(current)

    def close(self) -> tuple[torch.Tensor | None, ...] | None:
        """Everything received in the current backward pass; None if nothing was."""
        current = backward_pass()
        if current in self._noted:
            self._settle(current)
        return self._totals.pop(current, None)

    def _settle(self, current: int) -> None:
        noted = self._noted.pop(current)
        left, right = noted[0] if len(noted) == 1 else map(torch.cat, zip(*noted, strict=True))
        self._totals[current] = self.add(self._totals.get(current), left, right)

    def add(
        self, total: tuple[torch.Tensor | None, ...] | None, left: torch.Tensor, right: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        """The total with one more product."""
        raise AssertionError("each kind of use has a ledger of its own")


class ProductLedger(Ledger):
    """For ``input @ weight.T + bias``: weight receives gradient.T @ input, bias the sum of the gradients."""

    def __init__(self, transposed: bool, has_bias: bool) -> None:
        super().__init__()
        self._transposed, self._has_bias = transposed, has_bias

    def add(
        self, total: tuple[torch.Tensor | None, ...] | None, left: torch.Tensor, right: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        inputs, grads = left, right
        first, second = (inputs, grads) if self._transposed else (grads, inputs)
        if total is None:
            return first.t() @ second, grads.sum(0) if self._has_bias else None
        weight, bias = total
        assert weight is not None
        weight.addmm_(first.t(), second)
        if bias is not None:
            bias.add_(grads.sum(0))
        return weight, bias


class RowsLedger(Ledger):
    """For a table lookup: each row that was read receives its gradients."""

    def __init__(self, row_count: int, padding_row: int) -> None:
        super().__init__()
        self._row_count, self._padding_row = row_count, padding_row

    def add(
        self, total: tuple[torch.Tensor | None, ...] | None, left: torch.Tensor, right: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        rows, grads = left, right
        if self._padding_row >= 0:
            grads = grads.masked_fill((rows == self._padding_row).unsqueeze(1), 0)
        table = grads.new_zeros(self._row_count, grads.shape[1]) if total is None else total[0]
        assert table is not None
        return (table.index_add_(0, rows, grads),)


class SparseRowsLedger(Ledger):
    """The same for a table with sparse gradients: the rows and their gradients, joined once. Adding sparse tensors one to the other
    would copy all that came before every time."""

    def __init__(self, row_count: int, padding_row: int) -> None:
        super().__init__()
        self._row_count, self._padding_row = row_count, padding_row

    def note(self, left: torch.Tensor, right: torch.Tensor) -> None:
        self._noted.setdefault(backward_pass(), []).append((left, right))

    def add(
        self, total: tuple[torch.Tensor | None, ...] | None, left: torch.Tensor, right: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        assert total is None, "all uses are settled at once"
        return (sparse_rows(left, right, self._row_count, self._padding_row),)


def sparse_rows(rows: torch.Tensor, grads: torch.Tensor, row_count: int, padding_row: int) -> torch.Tensor:
    """The gradient of a table, with an entry for every row that was read, as often as it was."""
    if padding_row >= 0:
        counts = rows != padding_row
        rows, grads = rows[counts], grads[counts]
    return torch.sparse_coo_tensor(rows.unsqueeze(0), grads, (row_count, grads.shape[1]), check_invariants=False)
