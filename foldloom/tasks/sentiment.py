"""How a sentence feels: a label for every phrase of its tree, by a binary Tree-LSTM (Tai, Socher, Manning 2015)."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from foldloom.data.structures import Tree
from foldloom.data.trees import SentimentReader
from foldloom.data.vectors import WordVectors
from foldloom.data.vocabulary import Vocabulary
from foldloom.errors import ArgumentError, DataError
from foldloom.models.training import Trainable, set_vectors
from foldloom.models.trees.tree_classifier import numbered
from foldloom.models.trees.tree_lstm import TreeLSTM
from foldloom.tasks.files import files_of_parts
from foldloom.tasks.in_context import begin_in_context, example_in_context, model_in_context, optimizer_in_context
from foldloom.tasks.settings import Settings, setting, size
from foldloom.tasks.task import Data, Task

NAMES = ("very negative", "negative", "neutral", "positive", "very positive")
LABELS = Vocabulary(["0", "1", "2", "3", "4"])
NEUTRAL = 2


@dataclass(frozen=True, kw_only=True)
class SentimentSettings(Settings):
    epochs: int = 12
    batch: int = 25
    learning_rate: float = 0.05
    clip: float = 0.0
    word_learning_rate: float = setting(0.1, "Of the vectors of words, or of the encoder.", above=0, at_most=100)
    weight_decay: float = setting(1e-4, "Of all weights but the vectors of words.", at_least=0, at_most=1)
    embedding: int = size(100, "The size of the vectors of words.")
    hidden: int = size(150, "The size of states.")
    dropout: float = setting(0.5, "Of words and phrases.", at_least=0, below=1)
    recurrent_dropout: float = setting(0.25, "Of what a phrase adds to its state.", at_least=0, below=1)
    vectors: str = setting(
        "",
        "A folder with the words of vectors that were trained elsewhere, vocab.txt, and the vectors in one .npy file; "
        "nothing for none.",
    )
    encoder: bool = setting(
        False,
        "Whether a pretrained encoder reads the words in context, and is trained with Adam at word_learning_rate.",
    )


@dataclass(frozen=True, eq=False)
class SentimentTask(Task[Tree]):
    name = "sentiment"
    description = "how the phrases of a sentence feel, by a Tree-LSTM"
    data_wanted = "a folder with train.txt, dev.txt and test.txt of the Stanford Sentiment Treebank"
    line_wanted = "a tree such as (3 (2 a) (4 joy)); what its labels are makes no difference"
    quick: ClassVar[Mapping[str, Any]] = {"epochs": 3, "embedding": 16, "hidden": 16}

    settings: SentimentSettings
    words: Vocabulary

    @classmethod
    def read(cls, source: Path | None, settings: SentimentSettings) -> Data[Tree]:
        assert source is not None
        files = files_of_parts(source, ".txt", ".txt.gz")
        return Data.of({part: list(SentimentReader(path, limits=settings.limits)) for part, path in files.items()})

    @classmethod
    def made(cls, count: int, seed: int) -> list[Tree]:
        """Sums of what words feel like, over trees that are split at random places."""
        source = random.Random(seed)
        return [_grown(source, max(2, round(source.gauss(12, 5)))) for _ in range(count)]

    @classmethod
    def fitted(cls, data: Data[Tree], settings: SentimentSettings) -> Self:
        if settings.encoder:
            return cls(settings, Vocabulary([]))  # the encoder has words of its own
        words = Vocabulary.of((word for tree in data.train for word in tree.words), unknown=True)
        if settings.vectors:
            # Words that only others know are not unknown if their vectors are: what is learned is learned in the vectors' space.
            vectors = vectors_in(settings.vectors)
            if vectors.size != settings.embedding:
                raise ArgumentError(
                    f"expected vectors of {settings.embedding} numbers, not {vectors.size}: write --set embedding={vectors.size}"
                )
            others = {word for tree in (*data.dev, *data.test) for word in tree.words if vectors.row(word) is not None}
            words = Vocabulary([*words, *sorted(others - set(words))])
        return cls(settings, words)

    def model(self) -> Trainable:
        settings = self.settings
        if settings.encoder:
            return model_in_context(settings.hidden, len(LABELS), settings.dropout, settings.recurrent_dropout)
        return TreeLSTM(
            len(self.words),
            settings.embedding,
            settings.hidden,
            len(LABELS),
            dropout=settings.dropout,
            recurrent_dropout=settings.recurrent_dropout,
        )

    def begin(self, model: Trainable, data: Data[Tree]) -> None:
        if self.settings.encoder:
            begin_in_context(model)
        elif self.settings.vectors:
            set_vectors(model, vectors_in(self.settings.vectors).for_vocabulary(self.words))

    def optimizer(self, model: Trainable) -> torch.optim.Optimizer:
        settings = self.settings
        if settings.encoder:
            return optimizer_in_context(
                model, settings.learning_rate, settings.word_learning_rate, settings.weight_decay
            )
        # Gradients of words are sparse: those of a step reach few of them. Decay of all words would make them dense.
        words = [module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)]
        others = [weight for weight in model.parameters() if all(weight is not word for word in words)]
        groups: list[dict[str, Any]] = [
            {"params": words, "lr": settings.word_learning_rate},
            {"params": others, "weight_decay": settings.weight_decay},
        ]
        torch.sparse.check_sparse_tensor_invariants.disable()  # what is the default, but Adagrad wants it said
        return torch.optim.Adagrad(groups, lr=settings.learning_rate)

    def schedule(self, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        if self.settings.encoder:
            return super().schedule(optimizer, steps)
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)  # Adagrad has a schedule of its own

    def example(self, item: Tree) -> Any:
        if self.settings.encoder:
            return example_in_context(item, LABELS)
        return numbered(item, self.words, LABELS)

    def parse(self, line: str) -> Tree:
        return SentimentReader().parse(line)

    def answer(self, item: Tree, predicted: torch.Tensor) -> Any:
        probabilities = dict(zip(NAMES, predicted.tolist(), strict=True))
        return {"label": max(NAMES, key=lambda name: probabilities[name]), "probabilities": probabilities}

    def scores(self, predicted: Sequence[torch.Tensor], items: Sequence[Tree]) -> dict[str, float]:
        """Of whole sentences: all five labels, and where a sentence is not neutral, whether it is positive."""
        probabilities, right = torch.stack(list(predicted)), torch.tensor([LABELS[tree.label] for tree in items])
        positive = probabilities[:, NEUTRAL + 1 :].sum(1) > probabilities[:, :NEUTRAL].sum(1)
        decided = right != NEUTRAL
        return {
            "accuracy": (probabilities.argmax(1) == right).double().mean().item(),
            # No number if all are neutral.
            "binary accuracy": (positive == (right > NEUTRAL))[decided].double().mean().item(),
        }


def vectors_in(folder: str) -> WordVectors:
    if not os.path.isdir(folder):
        raise DataError("expected a folder with vectors, for the setting 'vectors'", repr(folder[:200])[1:-1])
    tables = sorted(Path(folder).glob("*.npy"))
    if len(tables) != 1:
        raise DataError(
            f"expected the words in vocab.txt and their vectors in one .npy file, not in {len(tables)}", folder
        )
    return WordVectors.read(Path(folder) / "vocab.txt", tables[0])


WORDS = {"dreadful": -2, "dull": -1, "a": 0, "film": 0, "of": 0, "its": 0, "time": 0, "fine": 1, "superb": 2}


def _grown(source: random.Random, leaves: int) -> Tree:
    if leaves == 1:
        word = source.choice(list(WORDS))
        return Tree(str(WORDS[word] + NEUTRAL), word)
    split = source.randint(1, leaves - 1)
    children = (_grown(source, split), _grown(source, leaves - split))
    feeling = sum(WORDS[word] for child in children for word in child.words)
    return Tree(str(max(-2, min(2, feeling)) + NEUTRAL), children=children)
