"""What the programs share: training them for a few seconds, and made-up phrases and sentences to train them on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

import foldloom as fl

Model = TypeVar("Model", bound=nn.Module)


def demonstrate(
    model_class: Callable[[], Model],
    made_examples: Callable[[int, int], Sequence[Any]],
    *,
    seconds: float = 6.0,
    batch_size: int = 64,
) -> Model:
    """Train a model of one example in batches, and say how much faster that is than one by one."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = model_class()
    examples = made_examples(2_000, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(run: Callable[..., torch.Tensor], batch: Sequence[Any]) -> float:
        loss = run(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    batched, one_by_one = fl.batch(model, stack=True), fl.one_by_one(model, stack=True)
    print(f"{type(model).__name__}: {sum(weights.numel() for weights in model.parameters()):,} weights")
    source = random.Random(0)
    start = reported = time.perf_counter()
    losses: list[float] = []
    while time.perf_counter() < start + seconds:
        losses.append(step(batched, source.sample(examples, batch_size)))
        if len(losses) == 1 or time.perf_counter() > reported + 1:
            reported = time.perf_counter()
            recent = losses[-20:]
            print(f"  {len(losses) * batch_size:>7,} examples seen, loss {sum(recent) / len(recent):.3f}", flush=True)

    def rate(run: Callable[..., torch.Tensor]) -> float:
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            step(run, examples[:batch_size])
            times.append(time.perf_counter() - begin)
        return batch_size / sorted(times)[1]

    alone, together = rate(one_by_one), rate(batched)
    print(
        f"  one by one {alone:,.0f} examples/s, batched {together:,.0f}: {together / alone:.1f} times as fast",
        flush=True,
    )
    return model


# --- phrases with a sentiment ------------------------------------------------------------------------------------

WORDS = 40
NEGATION = 0
SENTIMENTS = 5


@dataclass(slots=True)
class Phrase:
    """A binary tree over words, every part of it labelled from 0, very negative, to 4, very positive."""

    sentiment: int
    word: int = NEGATION
    parts: tuple[Phrase, Phrase] | None = None

    def __iter__(self) -> Iterator[Phrase]:
        """All parts, smaller ones before those that they are part of."""
        for part in self.parts or ():
            yield from part
        yield self


def made_phrase(source: random.Random, words: int) -> Phrase:
    """Every word has a sentiment of its own; those of two parts add up, and a negation before a phrase turns its sign."""
    if words == 1:
        word = source.randrange(WORDS)
        return Phrase(2 if word == NEGATION else word % SENTIMENTS, word)
    if words > 2 and source.random() < 0.2:
        negated = made_phrase(source, words - 1)
        return Phrase(4 - negated.sentiment, parts=(Phrase(2, NEGATION), negated))
    split = source.randint(1, words - 1)
    left, right = made_phrase(source, split), made_phrase(source, words - split)
    return Phrase(max(0, min(4, left.sentiment + right.sentiment - 2)), parts=(left, right))


def made_phrases(count: int, seed: int) -> list[Phrase]:
    source = random.Random(seed)
    return [made_phrase(source, source.randint(2, 14)) for _ in range(count)]


# --- sentences with a syntax -------------------------------------------------------------------------------------

RELATIONS = ("root", "det", "amod", "nsubj", "obj", "case", "nmod")
WORD_CLASSES = {"determiner": range(3), "adjective": range(3, 11), "noun": range(11, 26), "verb": range(26, 36)}
WORD_CLASSES["preposition"] = range(36, WORDS)


@dataclass(slots=True)
class Dependent:
    """A word with what depends on it: a dependency tree."""

    word: int
    relation: str
    before: list[Dependent] = field(default_factory=list)
    after: list[Dependent] = field(default_factory=list)

    @property
    def children(self) -> list[Dependent]:
        return self.before + self.after

    def in_order(self) -> Iterator[Dependent]:
        """All words of the sentence from left to right."""
        for child in self.before:
            yield from child.in_order()
        yield self
        for child in self.after:
            yield from child.in_order()


@dataclass(slots=True)
class Sentence:
    """Words with the position of each word's head, -1 for the root's, and the number of its relation to it."""

    words: list[int]
    heads: list[int]
    relations: list[int]


def made_dependency_tree(source: random.Random) -> Dependent:
    """A verb with a subject and often an object, whose nouns have adjectives and further nouns of their own."""

    def word(kind: str, relation: str) -> Dependent:
        return Dependent(source.choice(WORD_CLASSES[kind]), relation)

    def noun(relation: str, depth: int) -> Dependent:
        tree = word("noun", relation)
        if relation == "nmod":
            tree.before.append(word("preposition", "case"))
        if source.random() < 0.7:
            tree.before.append(word("determiner", "det"))
        tree.before += [word("adjective", "amod") for _ in range(source.choice((0, 0, 1, 2)))]
        if depth < 2 and source.random() < 0.4:
            tree.after.append(noun("nmod", depth + 1))
        return tree

    verb = word("verb", "root")
    verb.before.append(noun("nsubj", 0))
    if source.random() < 0.8:
        verb.after.append(noun("obj", 0))
    return verb


def made_sentence(source: random.Random) -> Sentence:
    root = made_dependency_tree(source)
    order = list(root.in_order())
    position = {id(node): number for number, node in enumerate(order)}
    heads = [-1] * len(order)
    for node in order:
        for child in node.children:
            heads[position[id(child)]] = position[id(node)]
    return Sentence([node.word for node in order], heads, [RELATIONS.index(node.relation) for node in order])


def made_sentences(count: int, seed: int) -> list[Sentence]:
    source = random.Random(seed)
    return [made_sentence(source) for _ in range(count)]
