"""The results of a batch, given back in the nesting in which the examples returned them.

Recording leaves a *template* of each result: the result itself with `OUTPUT` in place of every computed tensor, and an
`OutputRun` in place of a list of nothing else. Outputs are numbered in the order in which a template is walked: depth
first, items in order, the keys of a dict sorted so that two dicts of equal keys agree.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from foldloom.errors import StackError
from foldloom.graph import Ints, starts_of
from foldloom.graph.ragged import Ragged
from foldloom.graph.recording import OUTPUT, Output, OutputRun, filled, is_plain_list, map_items, sorted_keys
from foldloom.planning.plans import Plan


def template_of(result: Any, kind: type | tuple[type, ...], outputs: list[Any]) -> Any:
    """Take the outputs, which are of the given kind, out of a result; what is left is its template."""
    if isinstance(result, kind):
        outputs.append(result)
        return OUTPUT
    # The states of all nodes of a tree, or of all words of a sentence: worth looking at by types, not one by one.
    if type(result) is list and result and all(issubclass(item, kind) for item in set(map(type, result))):
        outputs += result
        return OutputRun(len(result))
    if is_plain_list(result):
        return list(result)
    return map_items(result, lambda item: template_of(item, kind, outputs))


def unstacked(
    plan: Plan,
    rows: Sequence[Sequence[torch.Tensor]],
    templates: Sequence[Any],
    requires_grad: Sequence[bool] | None = None,
) -> list[Any]:
    """The result of each example, from the rows of the plan's outputs.

    Outputs that do not require grad are detached from those with which they share an arena.
    """
    places = zip(plan.block_of_output.tolist(), plan.row_of_output.tolist(), strict=True)
    tensors = rows[0] if len(rows) == 1 else [rows[block][row] for block, row in places]
    if requires_grad is not None and not all(requires_grad):
        tensors = [tensor if needs else tensor.detach() for tensor, needs in zip(tensors, requires_grad, strict=True)]
    remaining = iter(tensors)
    return [filled(template, remaining) for template in templates]


def stacked(
    plan: Plan,
    blocks: Sequence[torch.Tensor],
    templates: Sequence[Any],
    requires_grad: Sequence[bool] | None = None,
) -> Any:
    """One result in the nesting of an example's, each tensor stacked over the examples and each list a Ragged."""
    return _PlannedStacker(plan, blocks, requires_grad).stack_examples(templates)


def stack_values(results: Sequence[Any], kind: type | tuple[type, ...] = torch.Tensor) -> Any:
    """The same for results that hold their tensors already, as examples run one by one do, or values that stand for tensors."""
    outputs: list[torch.Tensor] = []
    templates = [template_of(result, kind, outputs) for result in results]
    return _GivenStacker(outputs).stack_examples(templates)


def _items(template: Any) -> list[Any]:
    if isinstance(template, (tuple, list)):
        return list(template)
    if isinstance(template, dict):
        return [template[key] for key in sorted_keys(template)]
    if dataclasses.is_dataclass(template) and not isinstance(template, type):
        return [getattr(template, field.name) for field in dataclasses.fields(template) if field.init]
    return []


def _size(template: Any) -> int:
    """How many outputs a template holds."""
    if template is OUTPUT:
        return 1
    if type(template) is OutputRun:
        return template.length
    return sum(map(_size, _items(template)))


class _Stacker(ABC):
    """Walks the templates of all examples side by side."""

    @abstractmethod
    def leaf(self, numbers: Ints, path: str) -> torch.Tensor:
        """The outputs of these numbers as one tensor."""

    def stack_examples(self, templates: Sequence[Any]) -> Any:
        if not templates:
            raise StackError(
                "an empty batch has no result whose nesting could be kept: check `if examples:` before stacking"
            )
        sizes = np.array([_size(template) for template in templates], np.int64)
        return self.stack(templates, starts_of(sizes), "result")

    def stack(self, templates: Sequence[Any], starts: Ints, path: str) -> Any:
        """Stack templates whose outputs begin at the given numbers."""
        first = templates[0]
        if all(isinstance(template, (list, OutputRun)) for template in templates):
            return self._stack_lists(templates, starts, path)
        if any(type(template) is not type(first) for template in templates):
            kinds = sorted({_kind(template) for template in templates})
            raise StackError(
                f"{path} is {' in one example and '.join(kinds)} in another; stack=True needs one nesting for all examples. "
                "Return the same structure from every example, or call fl.batch without stack=True"
            )
        if first is OUTPUT:
            return self.leaf(starts, path)
        if isinstance(first, (bool, int, float)):
            return torch.tensor(templates)
        if isinstance(first, torch.Tensor):
            return _stack_tensors(templates, path)
        items = [_items(template) for template in templates]
        if not items[0] and not isinstance(first, (tuple, dict)):
            return list(templates)
        if isinstance(first, dict) and any(template.keys() != first.keys() for template in templates):
            raise StackError(f"{path} has different keys in different examples; stack=True needs the same keys in all")
        if any(len(item) != len(items[0]) for item in items):
            raise StackError(
                f"{path} is a tuple of different lengths in different examples; return a list, which stack=True makes a Ragged"
            )
        names = [f"{path}{_step_name(first, position)}" for position in range(len(items[0]))]
        children = []
        for position, name in enumerate(names):
            column = [item[position] for item in items]
            children.append(self.stack(column, starts, name))
            starts = starts + np.array([_size(template) for template in column], np.int64)
        remaining = iter(children)
        return map_items(first, lambda _: next(remaining))

    def _stack_lists(self, templates: Sequence[Any], starts: Ints, path: str) -> Any:
        expanded = [template if isinstance(template, list) else None for template in templates]
        lengths = np.array([_length(template) for template in templates], np.int64)
        if not any(expanded):
            numbers = np.arange(int(lengths.sum())) + np.repeat(starts - starts_of(lengths), lengths)
            values = self.leaf(numbers, f"{path}[...]") if len(numbers) else torch.empty(0)
            return Ragged(values, torch.from_numpy(lengths))
        elements = [item for template in templates for item in _elements(template)]
        sizes = np.array([_size(element) for element in elements], np.int64)
        first_element = starts_of(lengths)
        # Elements of one example follow each other; each example begins where its own outputs do.
        within = starts_of(sizes) - np.repeat(starts_of(sizes)[np.minimum(first_element, len(sizes) - 1)], lengths)
        values = self.stack(elements, np.repeat(starts, lengths) + within, f"{path}[...]")
        return _ragged(values, torch.from_numpy(lengths), path)


class _PlannedStacker(_Stacker):
    def __init__(self, plan: Plan, blocks: Sequence[torch.Tensor], requires_grad: Sequence[bool] | None) -> None:
        self._plan, self._blocks = plan, blocks
        self._requires_grad = None if requires_grad is None else np.array(requires_grad, np.bool_)

    def leaf(self, numbers: Ints, path: str) -> torch.Tensor:
        tensor = self._taken(numbers, path)
        if self._requires_grad is None or self._requires_grad[numbers].any():
            return tensor
        return tensor.detach()

    def _taken(self, numbers: Ints, path: str) -> torch.Tensor:
        """A view of the block they stand in, where they are evenly spaced."""
        blocks = self._plan.block_of_output[numbers]
        rows = self._plan.row_of_output[numbers]
        if (blocks != blocks[0]).any():
            return self._from_several(blocks, rows, path)
        block = self._blocks[int(blocks[0])]
        stride = int(rows[1] - rows[0]) if len(rows) > 1 else 1
        if stride > 0 and (np.diff(rows) == stride).all():
            return block if len(rows) == len(block) else block[int(rows[0]) : int(rows[-1]) + 1 : stride]
        return block.index_select(0, torch.from_numpy(rows).to(block.device))

    def _from_several(self, block_of_row: Ints, rows: Ints, path: str) -> torch.Tensor:
        """What was given in one example and computed in another stands in two blocks of one type."""
        used, position = np.unique(block_of_row, return_inverse=True)
        types = sorted({str(self._plan.arenas[self._plan.outputs[block].arena].type) for block in used})
        if len(types) > 1:
            raise StackError(
                f"{path} is {' in one place and '.join(types)} in another; only like tensors can be stacked"
            )
        blocks = [self._blocks[block] for block in used]
        first = starts_of(np.array([len(block) for block in blocks], np.int64))
        return torch.cat(blocks).index_select(0, torch.from_numpy(rows + first[position]).to(blocks[0].device))


class _GivenStacker(_Stacker):
    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        self._outputs = outputs

    def leaf(self, numbers: Ints, path: str) -> torch.Tensor:
        return _stack_tensors([self._outputs[number] for number in numbers.tolist()], path)


def _stack_tensors(tensors: Sequence[torch.Tensor], path: str) -> torch.Tensor:
    try:
        return torch.stack(list(tensors))
    except RuntimeError as error:
        raise StackError(f"{path}: only like tensors can be stacked: {error}") from error


def _ragged(values: Any, lengths: torch.Tensor, path: str) -> Any:
    if isinstance(values, torch.Tensor):
        return Ragged(values, lengths)
    if isinstance(values, Ragged):
        raise StackError(f"{path} is a list of lists; return one list, and the inner lengths beside it")
    if isinstance(values, list):
        ends = lengths.cumsum(0).tolist()
        return [values[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
    return map_items(values, lambda item: _ragged(item, lengths, path))


def _elements(template: Any) -> list[Any]:
    return [OUTPUT] * template.length if type(template) is OutputRun else template


def _length(template: Any) -> int:
    return template.length if type(template) is OutputRun else len(template)


def _kind(template: Any) -> str:
    return "a tensor" if isinstance(template, Output) else f"a {type(template).__name__}".replace("OutputRun", "list")


def _step_name(container: Any, position: int) -> str:
    if isinstance(container, dict):
        return f"[{sorted_keys(container)[position]!r}]"
    if dataclasses.is_dataclass(container):
        return "." + [field.name for field in dataclasses.fields(container) if field.init][position]
    return f"[{position}]"
