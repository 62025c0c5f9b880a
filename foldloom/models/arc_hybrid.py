"""Arc-hybrid transitions, by which a parser builds a dependency tree, and the oracle that says which of them are right.

Kuhlmann, Gómez-Rodríguez, Satta, "Dynamic Programming Algorithms for Transition-Based Dependency Parsers", ACL 2011. What is
right in a state that no gold parse leads to, says the dynamic oracle of Goldberg, Nivre, "Training Deterministic Parsers with
Non-Deterministic Oracles", TACL 2013.
"""

from __future__ import annotations

from collections.abc import Sequence

SHIFT, LEFT, RIGHT = range(3)


class Configuration:
    """A stack, and a buffer that holds the words from ``front`` on and then the root."""

    def __init__(self, words: int) -> None:
        self.root = words
        self.stack: list[int] = []
        self.front = 0
        self.heads = [-1] * words

    @property
    def done(self) -> bool:
        return self.front == self.root and not self.stack

    def legal(self) -> list[int]:
        actions = [SHIFT] if self.front < self.root else []
        if self.stack:
            actions.append(LEFT)
        if len(self.stack) > 1:
            actions.append(RIGHT)
        return actions

    def apply(self, action: int) -> int | None:
        """The word that the action gives a head, if any."""
        if action == SHIFT:
            self.stack.append(self.front)
            self.front += 1
            return None
        word = self.stack.pop()
        self.heads[word] = self.front if action == LEFT else self.stack[-1]
        return word

    def looked_at(self) -> list[int | None]:
        """The three uppermost words of the stack and the first one of the buffer."""
        return [*([None] * 3 + self.stack)[-3:], self.front]


class Oracle:
    """How many arcs of the gold parse an action puts out of reach. A head of -1 is the root."""

    def __init__(self, heads: Sequence[int]) -> None:
        self.heads = [len(heads) if head < 0 else head for head in heads]
        self.dependents: list[list[int]] = [[] for _ in range(len(heads) + 1)]
        for word, head in enumerate(self.heads):
            self.dependents[head].append(word)

    def cost(self, at: Configuration, action: int) -> int:
        if action == SHIFT:
            too_late = sum(word in at.stack for word in self.dependents[at.front])
            return too_late + (self.heads[at.front] in at.stack[:-1])
        top = at.stack[-1]
        head = self.heads[top]
        without_dependents = sum(word >= at.front for word in self.dependents[top])
        if action == LEFT:
            return without_dependents + (head > at.front or head in at.stack[-2:-1])
        return without_dependents + (head >= at.front)

    def best(self, at: Configuration) -> int:
        return min(at.legal(), key=lambda action: self.cost(at, action))
