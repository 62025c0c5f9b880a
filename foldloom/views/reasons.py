"""Why operations that look alike did not run together.

Nodes share a step where their ops are equal. So for each function, and each line that calls it, the question is what its ops differ in
(the shapes of their operands, the weights, the settings), and what would be gained if they did not: all of its nodes at one depth
could be one step. Where a function only inherits the shapes that it cannot batch from another one, the other one is to blame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from foldloom.graph import Op
from foldloom.views.survey import Place, Schedule, Survey


class Cause(Enum):
    """What keeps calls of one function apart."""

    LENGTHS = "lengths"
    WEIGHTS = "weights"
    SETTINGS = "settings"
    DTYPES = "dtypes"
    MODES = "modes"
    NO_RULE = "no rule"


@dataclass(frozen=True)
class Reason:
    """``steps`` could be as few as ``fewest`` if ``variants`` were one. ``follows`` are the labels of other functions that
    are kept apart by this one's results; ``ops`` are all ops concerned, theirs too."""

    label: str
    cause: Cause
    nodes: int
    steps: int
    alone: int
    fewest: int
    variants: int
    detail: str
    place: Place | None
    ops: frozenset[int]
    follows: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.what} {self.detail}"

    @property
    def what(self) -> str:
        if self.cause is Cause.NO_RULE:
            return f"`{self.label}` runs its {self.nodes} members one by one:"
        alone = (
            f"alone {_times(self.alone)}"
            if self.alone == self.steps
            else f"in {self.steps} steps, {self.alone} of them alone"
        )
        return f"`{self.label}` runs {alone}:"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


class _Family:
    """The nodes of one function, asked for on one line."""

    def __init__(self, survey: Survey, schedule: Schedule, nodes: np.ndarray) -> None:
        self.nodes = nodes
        self.place = survey.places[int(nodes[0])] if survey.places else None
        self.op_numbers = np.unique(survey.op_of_node[nodes]).tolist()
        self.ops = [survey.ops[number] for number in self.op_numbers]
        self.label = self.ops[0].label or self.ops[0].key
        steps = np.unique(schedule.step_of_node[nodes])
        self.steps = len(steps)
        self.alone = sum(schedule.steps[step].size == 1 for step in steps.tolist())
        levels = (
            survey.part_of_node[nodes] * (int(survey.depth_of_node.max(initial=0)) + 1) + survey.depth_of_node[nodes]
        )
        self.fewest = len(np.unique(levels))
        self.examples_of_op = _distinct(survey.op_of_node[nodes], survey.example_of_node[nodes])

    @property
    def is_split(self) -> bool:
        """Whether equal ops would at least halve the steps. (Two ops at a depth are a program's right.)"""
        return len(self.ops) > 2 and self.steps >= 2 * self.fewest and self.steps - self.fewest > 1


def _distinct(keys: np.ndarray, values: np.ndarray) -> Counter[int]:
    """For each key, how many different values stand beside it."""
    pairs = {*zip(keys.tolist(), values.tolist(), strict=True)}
    return Counter([key for key, _ in pairs])


def reasons_of(survey: Survey, schedule: Schedule, without_rule: Mapping[Op, str] | None = None) -> list[Reason]:
    """What could not be batched, the most steps first. ``without_rule`` has the ops that run member by member, and why."""
    families = _families(survey, schedule)
    split: dict[int, tuple[_Family, Cause, str, int]] = {}
    for number, family in enumerate(families):
        found = _cause(family, survey) if family.is_split else None
        if found is not None:
            split[number] = (family, *found)
    roots = _roots(survey, families, set(split))
    followers: dict[int, list[int]] = {}
    for number, root in roots.items():
        followers.setdefault(root, []).append(number)
    reasons = [
        _reason(*split[root], [families[n] for n in numbers if n != root]) for root, numbers in followers.items()
    ]
    reasons += _without_rule(survey, schedule, without_rule or {})
    return sorted(reasons, key=lambda reason: reason.fewest - reason.steps)


def _families(survey: Survey, schedule: Schedule) -> list[_Family]:
    computes = np.flatnonzero(schedule.step_of_node >= 0)
    key_numbers: dict[str, int] = {}
    # Cells are known by what they are called, so that copies of one are told to be copies.
    keys = [key_numbers.setdefault(op.key.partition("#")[0], len(key_numbers)) for op in survey.ops]
    place_numbers: dict[Place | None, int] = {}
    places = [place_numbers.setdefault(place, len(place_numbers)) for place in survey.places]
    family = np.array(keys, np.int64)[survey.op_of_node[computes]] * (len(place_numbers) + 1)
    if places:
        family = family + np.array(places, np.int64)[computes]
    order = np.argsort(family, kind="stable")
    bounds = np.flatnonzero(np.diff(family[order])) + 1
    return [_Family(survey, schedule, computes[nodes]) for nodes in np.split(order, bounds) if len(nodes)]


def _cause(family: _Family, survey: Survey) -> tuple[Cause, str, int] | None:
    """What its ops differ in, in words that say what to do, and in how many ways."""
    ops = family.ops
    shapes = {tuple(type.shape for type in op.inputs) for op in ops}
    if len(shapes) > 2:
        lengths = _lengths(shapes)
        detail = (
            f"its inputs have {len(lengths)} different lengths ({min(lengths)} to {max(lengths)}); pad or bucket"
            if lengths
            else f"its inputs have {len(shapes)} different shapes; pad or bucket"
        )
        return Cause.LENGTHS, detail, len(lengths or shapes)
    weights = {(op.key, op.shared) for op in ops}
    if len(weights) > 2 and (survey.example_count == 1 or set(family.examples_of_op.values()) == {1}):
        return (
            Cause.WEIGHTS,
            f"it is given {len(weights)} different weights, each used by one example; make the tensor once, outside the function",
            len(weights),
        )
    settings = {op.settings for op in ops}
    if len(settings) > 2:
        return (
            Cause.SETTINGS,
            f"it is called with {len(settings)} different settings; give numbers that differ as tensors (`torch.tensor(x)`)",
            len(settings),
        )
    for cause, kinds, word in (
        (Cause.DTYPES, {tuple(type.dtype for type in op.inputs) for op in ops}, "dtypes; convert them first"),
        (Cause.MODES, {op.mode for op in ops}, "modes; leave grad mode and autocast as they are within an example"),
    ):
        if len(kinds) > 2:
            return cause, f"it is called in {len(kinds)} different {word}", len(kinds)
    return None


def _lengths(shapes: set[tuple[tuple[int, ...], ...]]) -> set[int]:
    """The sizes of the first dimension that differs, where shapes differ in sizes only; also the number of operands, where they differ
    in that."""
    counts = {len(operands) for operands in shapes}
    if len(counts) > 1:
        return counts
    flat = [tuple(size for shape in operands for size in shape) for operands in shapes]
    if len({len(sizes) for sizes in flat}) > 1:
        return set()
    for sizes in zip(*flat, strict=True):
        if len(set(sizes)) > 1:
            return set(sizes)
    return set()


def _roots(survey: Survey, families: Sequence[_Family], split: set[int]) -> dict[int, int]:
    """For each family that is split, the one that it inherits it from, which may be itself.

    Rows of different number are stacked for functions that cannot take them as they are: there, the function is to blame, and the
    stacking is its doing.
    """
    family_of_node = np.full(len(survey.op_of_node), -1, np.int64)
    for number, family in enumerate(families):
        family_of_node[family.nodes] = number
    first = survey.first_operand_of_node

    def sources(node: int) -> set[int]:
        return set(family_of_node[survey.operands[first[node] : first[node] + survey.arity_of_node[node]]].tolist())

    stacking = {number for number in split if families[number].label == "stack"}
    root: dict[int, int] = {}
    for number in sorted(split - stacking, key=lambda number: int(families[number].nodes[0])):
        inherited = [root[source] for source in sorted(sources(int(families[number].nodes[-1]))) if source in root]
        root[number] = inherited[0] if inherited else number
    for number in stacking:
        readers = [n for n in root if number in sources(int(families[n].nodes[-1]))]
        root[number] = root[readers[0]] if readers else number
    return root


def _reason(family: _Family, cause: Cause, detail: str, variants: int, followers: Sequence[_Family]) -> Reason:
    return Reason(
        label=family.label,
        cause=cause,
        nodes=len(family.nodes),
        steps=family.steps,
        alone=family.alone,
        fewest=family.fewest,
        variants=variants,
        detail=detail,
        place=family.place,
        ops=frozenset([op for one in (family, *followers) for op in one.op_numbers]),
        follows=tuple(dict.fromkeys([follower.label for follower in followers])),
    )


def _without_rule(survey: Survey, schedule: Schedule, without_rule: Mapping[Op, str]) -> list[Reason]:
    reasons: list[Reason] = []
    for number, op in enumerate(survey.ops):
        nodes = np.flatnonzero(survey.op_of_node == number)
        if op not in without_rule or not len(nodes):
            continue
        places = survey.places_of_op.get(number)
        steps = np.unique(schedule.step_of_node[nodes])
        reasons.append(
            Reason(
                label=op.label or op.key,
                cause=Cause.NO_RULE,
                nodes=len(nodes),
                steps=len(nodes),
                alone=len(nodes),
                fewest=len(steps),
                variants=1,
                detail=f"{without_rule[op]}; put it into a cell that takes the batch first",
                place=places[0] if places else None,
                ops=frozenset([number]),
            )
        )
    return reasons
