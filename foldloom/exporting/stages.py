"""The order in which ops run, and which of them run in a loop.

Ops that feed each other or themselves, a strongly connected component, run in one loop. All others run once, in
topological order. So the characters, words and tags of a sentence are three loops and a step, whatever their lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from foldloom.runtime.description import Stage


def stages_of(count: int, readers: Mapping[int, Set[int]], parts: int = 1) -> tuple[Stage, ...]:
    """The stages of ``count`` ops. ``readers`` maps each op to those that read its results. Loops are split into
    ``parts``."""
    stages = []
    for group in _groups(count, readers):
        loop = len(group) > 1 or group[0] in readers.get(group[0], ())
        stages.append(Stage(tuple(sorted(group)), loop, parts if loop else 1))
    return tuple(stages)


def _groups(count: int, readers: Mapping[int, Set[int]]) -> list[list[int]]:
    """The strongly connected components in topological order (Tarjan 1972)."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    groups: list[list[int]] = []

    def visit(op: int) -> None:
        number[op] = lowest[op] = len(number)
        stack.append(op)
        on_stack.add(op)
        for reader in sorted(readers.get(op, ())):
            if reader not in number:
                visit(reader)
                lowest[op] = min(lowest[op], lowest[reader])
            elif reader in on_stack:
                lowest[op] = min(lowest[op], number[reader])
        if lowest[op] == number[op]:
            group: list[int] = []
            while not group or group[-1] != op:
                group.append(stack.pop())
                on_stack.remove(group[-1])
            groups.append(group)

    for op in range(count):
        if op not in number:
            visit(op)
    return groups[::-1]
