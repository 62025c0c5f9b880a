"""The results of a batch, given back in the nesting in which the examples returned them.

Recording leaves of each result what is not computed: a template, or the result itself, to be filled where it stands (`pytrees`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from foldloom.errors import StackError
from foldloom.execution.backward.dead_ends import with_flag
from foldloom.graph import Ints, starts_of
from foldloom.graph.ragged import Ragged
from foldloom.planning.plans import Plan
from foldloom.pytrees import Kind, Node, Output, OutputRun, Template, fill, keep_whole, kind_of, template_of

keep_whole(torch.Tensor, torch.nn.Module)


class Owner(Protocol):
    """Whoever wants to know the tensor that an output became, and may put another in its place."""

    def belongs_to(self, result: torch.Tensor) -> torch.Tensor: ...


class GivenBack:
    """What is known of the outputs of a batch, beside their values."""

    def __init__(self) -> None:
        self.requires_grad: Sequence[bool] | None = None
        """Which outputs do; None if what is computed decides."""
        self.known: list[torch.Tensor | Owner | None] = []
        """For each output the user's tensor that it is, or who wants to know the result."""

    def add(self, known: Sequence[torch.Tensor | Owner | None]) -> None:
        """What is known of the outputs of the next example."""
        self.known += known

    def result(self, tensor: torch.Tensor, known: torch.Tensor | Owner | None) -> torch.Tensor:
        if isinstance(known, torch.Tensor):
            return known
        return tensor if known is None else known.belongs_to(tensor)


def unstacked(
    plan: Plan, rows: Sequence[Sequence[torch.Tensor]], templates: Sequence[Any], back: GivenBack
) -> list[Any]:
    """The result of each example, from the rows of the plan's outputs.

    Outputs that do not require grad are detached from those with which they share an arena. Those that were given are given back.
    """
    requires_grad = back.requires_grad
    places = zip(plan.block_of_output.tolist(), plan.row_of_output.tolist(), strict=True)
    tensors = rows[0] if len(rows) == 1 else [rows[block][row] for block, row in places]
    if requires_grad is not None:
        tensors = [
            tensor if tensor.requires_grad is needs else with_flag(tensor, needs)
            for tensor, needs in zip(tensors, requires_grad, strict=True)
        ]
    if any(known is not None for known in back.known):
        tensors = list(tensors)
        # Views of other results come when these are known.
        for number, known in sorted(enumerate(back.known), key=lambda entry: getattr(entry[1], "comes_last", False)):
            tensors[number] = back.result(tensors[number], known)
    return fill(templates, tensors)


def stacked(
    plan: Plan,
    blocks: Sequence[torch.Tensor],
    templates: Sequence[Template],
    requires_grad: Sequence[bool] | None = None,
) -> Any:
    """One result in the nesting of an example's, each tensor stacked over the examples and each list a Ragged."""
    return _PlannedStacker(plan, blocks, requires_grad).stack_examples(templates)


def stack_values(results: Sequence[Any], leaf: type | tuple[type, ...] = torch.Tensor) -> Any:
    """The same for results that hold their tensors already, as examples run one by one do, or values that stand for tensors."""
    found = [template_of(result, leaf) for result in results]
    outputs = [output for _, outputs in found for output in outputs]
    return _GivenStacker(outputs).stack_examples([template for template, _ in found])


class _Stacker(ABC):
    """Walks the templates of all examples side by side."""

    @abstractmethod
    def leaf(self, numbers: Ints, path: str) -> torch.Tensor:
        """The outputs of these numbers as one tensor."""

    def stack_examples(self, templates: Sequence[Template]) -> Any:
        if not templates:
            raise StackError(
                "an empty batch has no result whose nesting could be kept: check `if examples:` before stacking"
            )
        starts = starts_of(np.array([template.count for template in templates], np.int64))
        return self.stack([template.root for template in templates], starts, "result")

    def stack(self, templates: Sequence[Any], starts: Ints, path: str) -> Any:
        """Stack templates; the outputs of the example that each is of begin at the given numbers."""
        first = templates[0]
        if all(map(_is_list, templates)):
            return self._stack_lists(templates, starts, path)
        if any(_class_of(template) is not _class_of(first) for template in templates):
            kinds = sorted({_told(template) for template in templates})
            raise StackError(
                f"{path} is {' in one example and '.join(kinds)} in another; stack=True needs one nesting for all examples. "
                "Return the same structure from every example, or call fl.batch without stack=True"
            )
        if isinstance(first, Output):
            return self.leaf(starts + np.array([template.number for template in templates], np.int64), path)
        if isinstance(first, (bool, int, float)):
            return torch.tensor(templates)
        if isinstance(first, torch.Tensor):
            return _stack_tensors(templates, path)
        if not isinstance(first, (Node, OutputRun, tuple)):
            return list(templates)
        return self._stack_containers([_node(template) for template in templates], starts, path)

    def _stack_containers(self, nodes: Sequence[Node], starts: Ints, path: str) -> Any:
        first = nodes[0]
        kind = _kind(first.cls)
        if issubclass(first.cls, (set, frozenset)):
            raise StackError(f"{path} is a set, which has no order to stack it in; return a tuple, a list or a dict")
        keys = _keys(first)
        if any(len(node.items) != len(keys) for node in nodes) and issubclass(first.cls, tuple):
            raise StackError(
                f"{path} is a tuple of different lengths in different examples; return a list, which stack=True makes a Ragged"
            )
        rows = [_items_by_key(node, keys) for node in nodes]
        if any(row is None for row in rows):
            raise StackError(f"{path} has different keys in different examples; stack=True needs the same keys in all")
        columns = zip(keys, zip(*rows, strict=True), strict=True)
        entries = [(key, self.stack(column, starts, f"{path}{_step(kind, key)}")) for key, column in columns]
        return kind.make(first.cls, first.extra, entries)

    def _stack_lists(self, templates: Sequence[Any], starts: Ints, path: str) -> Any:
        """A list is ragged, of whatever class: what has a row for each of its items has no other form."""
        lengths = np.array([_length(template) for template in templates], np.int64)
        starts = np.repeat(starts, lengths)
        if all(isinstance(template, OutputRun) or not template.items for template in templates):
            firsts = np.array([getattr(template, "first", 0) for template in templates], np.int64)
            within = np.arange(len(starts)) - np.repeat(starts_of(lengths), lengths)
            numbers = starts + np.repeat(firsts, lengths) + within
            values = self.leaf(numbers, f"{path}[...]") if len(numbers) else torch.empty(0)
            return Ragged(values, torch.from_numpy(lengths))
        elements = [item for template in templates for item in _node(template).items]
        return _ragged(self.stack(elements, starts, f"{path}[...]"), torch.from_numpy(lengths), path)


class _PlannedStacker(_Stacker):
    def __init__(self, plan: Plan, blocks: Sequence[torch.Tensor], requires_grad: Sequence[bool] | None) -> None:
        self._plan, self._blocks = plan, blocks
        self._requires_grad = None if requires_grad is None else np.array(requires_grad, np.bool_)

    def leaf(self, numbers: Ints, path: str) -> torch.Tensor:
        tensor = self._taken(numbers, path)
        return tensor if self._requires_grad is None else with_flag(tensor, bool(self._requires_grad[numbers].any()))

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
    kind = kind_of(type(values))
    if kind is None:
        return values
    entries = [(key, _ragged(item, lengths, path)) for key, item in kind.entries(values)]
    return kind.make(type(values), kind.extra(values), entries)


def _kind(cls: type) -> Kind:
    kind = kind_of(cls)
    assert kind is not None, "only containers become nodes"
    return kind


def _class_of(template: Any) -> type:
    return template.cls if isinstance(template, (Node, OutputRun)) else type(template)


def _is_list(template: Any) -> bool:
    return isinstance(template, (Node, OutputRun)) and _kind(template.cls).is_list


def _node(template: Any) -> Node:
    """A container with its items one by one."""
    if isinstance(template, Node):
        return template
    if isinstance(template, tuple):  # without outputs, it stands for itself
        kind = _kind(type(template))
        keys, items = zip(*kind.entries(template), strict=True) if template else ((), ())
        # Sizes have nothing but numbers in them, which become tensors.
        return Node(tuple if type(template) is torch.Size else type(template), kind.extra(template), keys, items)
    numbers = range(template.first, template.first + template.length)
    return Node(template.cls, None, range(template.length), [Output(number) for number in numbers])


def _length(template: Node | OutputRun) -> int:
    return template.length if isinstance(template, OutputRun) else len(template.items)


def _keys(node: Node) -> Sequence[Any]:
    return range(len(node.items)) if node.keys is None else node.keys


def _items_by_key(node: Node, keys: Sequence[Any]) -> Sequence[Any] | None:
    """The items in the order of the keys; None if the keys are others."""
    own = _keys(node)
    if list(own) == list(keys):
        return node.items
    by_key = dict(zip(own, node.items, strict=True))
    return [by_key[key] for key in keys] if by_key.keys() == set(keys) else None


def _told(template: Any) -> str:
    return "a tensor" if isinstance(template, Output) else f"a {_class_of(template).__name__}"


def _step(kind: Kind, key: Any) -> str:
    return f".{key}" if kind.is_object else f"[{key!r}]"
