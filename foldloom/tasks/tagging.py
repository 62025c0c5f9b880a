"""A tag for every word: parts of speech, or names in text (Huang, Xu, Yu 2015), by a BiLSTM over words and their characters."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from foldloom.data.dependencies import ConlluReader
from foldloom.data.structures import TaggedSentence
from foldloom.data.tagged import TaggedReader
from foldloom.data.vocabulary import Vocabulary
from foldloom.errors import DataError
from foldloom.models.tagger import NumberedSentence, Tagger
from foldloom.models.training import UNLABELLED, Trainable
from foldloom.tasks.files import files_of_parts
from foldloom.tasks.settings import Settings, setting, size
from foldloom.tasks.task import Data, Task


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(Settings):
    epochs: int = 8
    learning_rate: float = 4e-3
    characters: bool = setting(True, "Whether words are spelled, too.")
    embedding: int = size(100, "The size of the vectors of words.")
    spelling: int = size(64, "The size of what each direction remembers of characters.")
    hidden: int = size(128, "The size of the states of each direction.")
    layers: int = setting(1, "Of the BiLSTM.", at_least=1, at_most=16)
    dropout: float = setting(0.33, "Of words, states, and between layers.", at_least=0, below=1)
    forgetting: float = setting(
        0.25, "How readily rare words are forgotten in training, for the sake of unknown ones; 0 for never.", at_least=0
    )


@dataclass(frozen=True, eq=False)
class TaggingTask(Task[TaggedSentence]):
    name = "tagging"
    description = "a tag for every word, by BiLSTMs over words and characters"
    data_wanted = "a folder with files for train, dev and test: CoNLL-U (.conllu, .conllu.gz) or word|TAG lines (.txt)"
    line_wanted = "the words of a sentence, separated by spaces"
    quick: ClassVar[Mapping[str, Any]] = {
        "epochs": 4,
        "learning_rate": 3e-2,
        "embedding": 16,
        "spelling": 8,
        "hidden": 16,
    }

    settings: TaggingSettings
    words: Vocabulary
    characters: Vocabulary
    tags: Vocabulary

    @classmethod
    def read(cls, source: Path | None, settings: TaggingSettings) -> Data[TaggedSentence]:
        assert source is not None
        files = files_of_parts(source, ".conllu", ".conllu.gz", ".txt", ".txt.gz")
        return Data.of({part: list(_reader(path, settings)) for part, path in files.items()})

    @classmethod
    def made(cls, count: int, seed: int) -> list[TaggedSentence]:
        """The last letter of a word tells its tag; three words in ten are rare."""
        source = random.Random(seed)

        def rare() -> str:
            return "".join(source.choice(LETTERS) for _ in range(source.randint(3, 9)))

        frequent = [rare() for _ in range(200)]

        def word() -> str:
            return rare() if source.random() < 0.3 else source.choice(frequent)

        sentences = [tuple([word() for _ in range(source.randint(4, 14))]) for _ in range(count)]
        return [TaggedSentence(words, tuple([MADE_TAGS[ord(word[-1]) % 6] for word in words])) for words in sentences]

    @classmethod
    def fitted(cls, data: Data[TaggedSentence], settings: TaggingSettings) -> Self:
        words = [word for sentence in data.train for word in sentence.words]
        return cls(
            settings,
            Vocabulary.of(words, at_least=2, unknown=True),
            Vocabulary.of((character for word in words for character in word), at_least=3, unknown=True),
            Vocabulary.of(tag for sentence in data.train for tag in sentence.tags),
        )

    def model(self) -> Trainable:
        settings = self.settings
        return Tagger(
            len(self.words),
            len(self.tags),
            len(self.characters) if settings.characters else 0,
            embedding=settings.embedding,
            spelling=settings.spelling,
            hidden=settings.hidden,
            layers=settings.layers,
            dropout=settings.dropout,
        )

    def begin(self, model: Trainable, data: Data[TaggedSentence]) -> None:
        assert isinstance(model, Tagger)
        if self.settings.forgetting:
            counts = Counter(word for sentence in data.train for word in sentence.words)
            model.table.forget_rare([counts[word] for word in self.words], self.settings.forgetting)

    def example(self, item: TaggedSentence) -> NumberedSentence:
        spelled = [[self.characters[character] for character in word] for word in item.words]
        # A tag that training has not seen cannot be learned, nor be right.
        tags = [UNLABELLED if number is None else number for number in map(self.tags.get, item.tags)]
        return NumberedSentence(
            [self.words[word] for word in item.words], spelled if self.settings.characters else (), tags
        )

    def parse(self, line: str) -> TaggedSentence:
        words = line.split()
        if not words:
            raise DataError(f"expected {self.line_wanted}, but there are none")
        return TaggedSentence(tuple(words), ())

    def answer(self, item: TaggedSentence, predicted: Sequence[int]) -> Any:
        return {"words": list(item.words), "tags": [self.tags.names[number] for number in predicted]}

    def scores(self, predicted: Sequence[Sequence[int]], items: Sequence[TaggedSentence]) -> dict[str, float]:
        """Of words; and where tags say so, of names: precision and recall as one number, F1."""
        given = [[self.tags.names[number] for number in numbers] for numbers in predicted]
        pairs = [pair for tags, item in zip(given, items, strict=True) for pair in zip(tags, item.tags, strict=True)]
        scores = {"accuracy": sum(one == other for one, other in pairs) / len(pairs)}
        if any(tag.startswith("I-") for tag in self.tags):
            found, right = (
                {(n, *span) for n, tags in enumerate(all) for span in spans(tags)} for all in (given, _tags(items))
            )
            scores = {"F1": 2 * len(found & right) / max(len(found) + len(right), 1), **scores}
        return scores


LETTERS = "abcdefghijklmnopqrstuvwxyz"
MADE_TAGS = ("NOUN", "VERB", "ADJ", "ADV", "DET", "PRON")


def _tags(items: Sequence[TaggedSentence]) -> list[Sequence[str]]:
    return [item.tags for item in items]


def _reader(path: Path, settings: TaggingSettings) -> ConlluReader | TaggedReader:
    kind = ConlluReader if ".conllu" in path.suffixes else TaggedReader
    return kind(path, limits=settings.limits)


def spans(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Names as (first word, word after the last, kind): a run of ``I-`` tags of one kind, which ``B-`` begins anew.

    >>> spans(["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-PER"])
    [(0, 2, 'PER'), (3, 4, 'LOC'), (4, 5, 'LOC'), (5, 6, 'PER')]
    """
    found, start = [], 0
    for position in range(1, len(tags) + 1):
        kind = tags[start][2:]
        if position == len(tags) or tags[position] != f"I-{kind}":
            if kind:
                found.append((start, position, kind))
            start = position
    return found
