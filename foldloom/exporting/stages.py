"""In which order ops run, and which of them in a loop.

Ops that feed each other, or themselves, run in one loop; all others run once, in an order in which everything is made before it
is read. So a sentence's characters, its words and its tags are three loops and a step, whatever their lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from foldloom.runtime.description import Stage


def stages_of(count: int, readers: Mapping[int, Set[int]], parts: int = 1) -> tuple[Stage, ...]:
    """The stages of so many ops, where ``readers`` says which ops read what each of them makes; loops in so many parts."""
    stages = []
    for group in _groups(count, readers):
        loop = len(group) > 1 or group[0] in readers.get(group[0], ())
        stages.append(Stage(tuple(sorted(group)), loop, parts if loop else 1))
    return tuple(stages)


def _groups(count: int, readers: Mapping[int, Set[int]]) -> list[list[int]]:
    """The strongly connected components, makers before readers (Tarjan 1972)."""
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
