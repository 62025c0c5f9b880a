"""The dependency tree of a sentence, by greedy transitions from BiLSTM features (Kiperwasser and Goldberg 2016)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from foldloom.data.dependencies import ConlluReader
from foldloom.data.structures import ParsedSentence
from foldloom.data.tagged import TaggedReader
from foldloom.data.vocabulary import Vocabulary
from foldloom.models.parser import NumberedSentence, Parse, TransitionParser
from foldloom.models.training import Trainable
from foldloom.tasks.files import files_of_parts
from foldloom.tasks.settings import Settings, setting, size
from foldloom.tasks.task import Data, Task


@dataclass(frozen=True, kw_only=True)
class ParsingSettings(Settings):
    epochs: int = 8
    learning_rate: float = 2e-3
    embedding: int = size(100, "The size of the vectors of words.")
    hidden: int = size(125, "The size of the states of each direction.")
    layers: int = setting(2, "Of the BiLSTM.", at_least=1, at_most=16)
    scorer: int = size(100, "The size of the hidden layer that decides.")
    dropout: float = setting(0.33, "Between layers.", at_least=0, below=1)
    forgetting: float = setting(
        0.25, "How readily rare words are forgotten in training, for the sake of unknown ones; 0 for never.", at_least=0
    )
    explore: bool = setting(
        False, "Whether training goes where the parser's own decisions lead: slower, and kinder to its mistakes."
    )


@dataclass(frozen=True, eq=False)
class ParsingTask(Task[ParsedSentence]):
    name = "parsing"
    description = "the dependency tree of a tagged sentence, by transitions from BiLSTM features"
    data_wanted = "a folder with CoNLL-U files (.conllu, .conllu.gz) for train, dev and test"
    line_wanted = "the words of a sentence with their tags, such as She|PRON sleeps|VERB"
    quick: ClassVar[Mapping[str, Any]] = {
        "epochs": 4,
        "learning_rate": 3e-2,
        "embedding": 16,
        "hidden": 16,
        "scorer": 16,
    }

    settings: ParsingSettings
    words: Vocabulary
    tags: Vocabulary
    relations: Vocabulary

    @classmethod
    def read(cls, source: Path | None, settings: ParsingSettings) -> Data[ParsedSentence]:
        assert source is not None
        files = files_of_parts(source, ".conllu", ".conllu.gz")
        return Data.of({part: list(ConlluReader(path, limits=settings.limits)) for part, path in files.items()})

    @classmethod
    def made(cls, count: int, seed: int) -> list[ParsedSentence]:
        """A verb and what it has on both sides: nouns with what they have before them."""
        source = random.Random(seed)
        return [_sentence(source) for _ in range(count)]

    @classmethod
    def fitted(cls, data: Data[ParsedSentence], settings: ParsingSettings) -> Self:
        return cls(
            settings,
            Vocabulary.of((word.lower() for item in data.train for word in item.words), at_least=2, unknown=True),
            Vocabulary.of((tag for item in data.train for tag in item.tags), unknown=True),
            Vocabulary.of((relation for item in data.train for relation in item.relations), unknown=True),
        )

    def model(self) -> Trainable:
        settings = self.settings
        return TransitionParser(
            len(self.words),
            len(self.tags),
            len(self.relations),
            embedding=settings.embedding,
            hidden=settings.hidden,
            layers=settings.layers,
            scorer=settings.scorer,
            dropout=settings.dropout,
            explore=settings.explore,
        )

    def begin(self, model: Trainable, data: Data[ParsedSentence]) -> None:
        assert isinstance(model, TransitionParser)
        if self.settings.forgetting:
            counts = Counter(word.lower() for item in data.train for word in item.words)
            model.table.forget_rare([counts[word] for word in self.words], self.settings.forgetting)

    def optimizer(self, model: Trainable) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.settings.learning_rate, betas=(0.9, 0.9))

    def example(self, item: ParsedSentence) -> NumberedSentence:
        return NumberedSentence(
            [self.words[word.lower()] for word in item.words],
            [self.tags[tag] for tag in item.tags],
            item.heads,
            [self.relations[relation] for relation in item.relations],
        )

    def parse(self, line: str) -> ParsedSentence:
        tagged = TaggedReader().parse(line)
        return ParsedSentence(tagged.words, tagged.tags, (), ())

    def answer(self, item: ParsedSentence, predicted: Parse) -> Any:
        """Heads count from 1, as CoNLL-U has them; 0 is the root's."""
        relations = [self.relations.names[number] for number in predicted.relations]
        return {"words": list(item.words), "heads": [head + 1 for head in predicted.heads], "relations": relations}

    def scores(self, predicted: Sequence[Parse], items: Sequence[ParsedSentence]) -> dict[str, float]:
        """Words with the right head and relation (LAS), and with the right head (UAS); punctuation counts."""
        words = attached = labelled = 0
        for parse, item in zip(predicted, items, strict=True):
            relations = [self.relations.names[number] for number in parse.relations]
            right = [head == own for head, own in zip(parse.heads, item.heads, strict=True)]
            both = [r and name == own for r, name, own in zip(right, relations, item.relations, strict=True)]
            words, attached, labelled = words + len(right), attached + sum(right), labelled + sum(both)
        return {"LAS": labelled / words, "UAS": attached / words}


_WORDS = {
    "DET": ("the", "a", "every"),
    "ADJ": ("red", "old", "small", "quick"),
    "NOUN": ("dog", "house", "child", "river", "song"),
    "VERB": ("sees", "likes", "hears"),
    "ADV": ("often", "never"),
}


def _sentence(source: random.Random) -> ParsedSentence:
    rows: list[tuple[str, int, str]] = []  # tag, head, relation

    def phrase() -> int:
        """The place of its noun, whose head is not known yet."""
        adjectives = source.choice((0, 0, 1, 2))
        noun = len(rows) + 1 + adjectives
        rows.extend([("DET", noun, "det"), *[("ADJ", noun, "amod")] * adjectives, ("NOUN", -1, "nsubj")])
        return noun

    subject = phrase()
    adverbs = source.choice((0, 0, 1))
    verb = len(rows) + adverbs
    rows.extend([*[("ADV", verb, "advmod")] * adverbs, ("VERB", -1, "root")])
    rows[subject] = ("NOUN", verb, "nsubj")
    if source.random() < 0.7:
        rows[phrase()] = ("NOUN", verb, "obj")
    tags, heads, relations = zip(*rows, strict=True)
    return ParsedSentence(tuple([source.choice(_WORDS[tag]) for tag in tags]), tags, heads, relations)
