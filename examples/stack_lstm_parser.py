"""A dependency parser that sees all of its stack, all of its buffer and all that it did, each through an LSTM that can go back.

Dyer, Ballesteros, Ling, Matthews, Smith, "Transition-Based Dependency Parsing with Stack Long Short-Term Memory", ACL 2015,
with arc-standard transitions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.common import RELATIONS, WORDS, Sentence, demonstrate, made_sentences

SHIFT = 0


def left_arc(relation: int) -> int:
    return 1 + 2 * relation


def right_arc(relation: int) -> int:
    return 2 + 2 * relation


@dataclass(slots=True)
class Item:
    word: int
    vector: Tensor


@dataclass(slots=True)
class Summary:
    """A stack with the LSTM's state after all of its items. Never changed: what a push adds to, a pop goes back to."""

    hidden: Tensor
    cell: Tensor
    item: Item | None = None
    below: Summary | None = None
    size: int = 0

    def pop(self) -> tuple[Item, Summary]:
        if self.item is None or self.below is None:
            raise IndexError("nothing on the stack")
        return self.item, self.below


class StackLSTM(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(inputs, hidden)
        self.empty_hidden = nn.Parameter(torch.zeros(hidden))
        self.empty_cell = nn.Parameter(torch.zeros(hidden))

    def empty(self) -> Summary:
        return Summary(self.empty_hidden, self.empty_cell)

    def push(self, stack: Summary, item: Item) -> Summary:
        hidden, cell = self.cell(item.vector, (stack.hidden, stack.cell))
        return Summary(hidden, cell, item, stack, stack.size + 1)


class StackLSTMParser(nn.Module):
    def __init__(
        self,
        words: int = WORDS,
        embedding: int = 24,
        hidden: int = 32,
        actions: int = 12,
        relations: int = len(RELATIONS),
    ) -> None:
        super().__init__()
        self.relations = relations
        self.embed = nn.Sequential(nn.Embedding(words, embedding), nn.Linear(embedding, embedding), nn.ReLU())
        self.embed_action = nn.Embedding(1 + 2 * relations, actions)
        self.embed_relation = nn.Embedding(relations, actions)
        self.compose = nn.Sequential(nn.Linear(2 * embedding + actions, embedding), nn.Tanh())
        self.stack, self.buffer = StackLSTM(embedding, hidden), StackLSTM(embedding, hidden)
        self.history = StackLSTM(actions, hidden)
        self.state = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.ReLU())
        self.score = nn.Linear(hidden, 1 + 2 * relations)

    def start(self, words: list[int]) -> tuple[Summary, Summary, Summary]:
        buffer = self.buffer.empty()
        for position in reversed(range(len(words))):
            buffer = self.buffer.push(buffer, Item(position, self.embed(torch.tensor(words[position]))))
        return self.stack.empty(), buffer, self.history.empty()

    def scores(self, stack: Summary, buffer: Summary, history: Summary) -> Tensor:
        scores: Tensor = self.score(self.state(torch.cat([stack.hidden, buffer.hidden, history.hidden])))
        return scores

    def step(
        self, action: int, stack: Summary, buffer: Summary, history: Summary, heads: list[int]
    ) -> tuple[Summary, Summary, Summary]:
        history = self.history.push(history, Item(action, self.embed_action(torch.tensor(action))))
        if action == SHIFT:
            item, buffer = buffer.pop()
            return self.stack.push(stack, item), buffer, history
        relation, is_right = divmod(action - 1, 2)
        second, stack = stack.pop()
        first, stack = stack.pop()
        head, dependent = (first, second) if is_right else (second, first)
        heads[dependent.word] = head.word
        parts = [head.vector, dependent.vector, self.embed_relation(torch.tensor(relation))]
        return self.stack.push(stack, Item(head.word, self.compose(torch.cat(parts)))), buffer, history

    def forward(self, sentence: Sentence) -> Tensor:
        stack, buffer, history = self.start(sentence.words)
        losses = []
        for action in gold_actions(sentence):
            losses.append(F.cross_entropy(self.scores(stack, buffer, history), torch.tensor(action)))
            stack, buffer, history = self.step(action, stack, buffer, history, list(sentence.heads))
        return torch.stack(losses).sum()

    def predict(self, sentence: Sentence) -> list[int]:
        """The head of each word, -1 for the root."""
        stack, buffer, history = self.start(sentence.words)
        heads = [-1] * len(sentence.words)
        while buffer.size > 0 or stack.size > 1:
            legal = [SHIFT] if buffer.size > 0 else []
            if stack.size > 1:
                legal += range(1, 1 + 2 * self.relations)
            best = int(self.scores(stack, buffer, history)[legal].argmax())
            stack, buffer, history = self.step(legal[best], stack, buffer, history, heads)
        return heads


def gold_actions(sentence: Sentence) -> list[int]:
    """A word gets its head once it has all of its own dependents."""
    missing = [sentence.heads.count(word) for word in range(len(sentence.words))]
    stack: list[int] = []
    actions = []
    shifted = 0
    while shifted < len(sentence.words) or len(stack) > 1:
        second, first = (stack[-2], stack[-1]) if len(stack) > 1 else (-2, -2)
        if first >= 0 and sentence.heads[second] == first and not missing[second]:
            actions.append(left_arc(sentence.relations[second]))
            missing[first] -= 1
            del stack[-2]
        elif first >= 0 and sentence.heads[first] == second and not missing[first]:
            actions.append(right_arc(sentence.relations[first]))
            missing[second] -= 1
            del stack[-1]
        else:
            actions.append(SHIFT)
            stack.append(shifted)
            shifted += 1
    return actions


def made_examples(count: int, seed: int) -> list[Sentence]:
    return made_sentences(count, seed)


def main() -> None:
    demonstrate(StackLSTMParser, made_examples)


if __name__ == "__main__":
    main()
