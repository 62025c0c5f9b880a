"""Taggers and a parser in PyTorch, one by one and by hand, and in Foldloom."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import foldloom as fl
from benchmarks.on_the_fly_models import ByHand, CharacterTagging, Parsing, Tagging, Task, over_sequences
from benchmarks.peers.protocol import Batch, Given
from benchmarks.peers.workers.foldloom_base import InWorkers, Kept, Recorded
from benchmarks.peers.workers.torch_base import TorchProgram, set_weights
from examples.bilstm_tagger import BiLSTMTagger, TaggedSentence
from examples.character_tagger import CharacterTagger, Token
from examples.common import Sentence
from examples.transition_parser import TransitionParser


def tagging(given: Given) -> Tagging:
    model = BiLSTMTagger(**given.sizes)
    examples = [TaggedSentence(*both) for both in zip(given.lists("word"), given.lists("tag"), strict=True)]
    set_weights(dict(model.named_children()), given.weights)
    return Tagging(examples, model)


def character_tagging(given: Given) -> CharacterTagging:
    model = CharacterTagger(**given.sizes)
    sentences = zip(given.lists("word"), given.spelled(), given.lists("tag"), strict=True)
    examples = [
        [Token(None if word < 0 else word, characters, tag) for word, characters, tag in zip(*sentence, strict=True)]
        for sentence in sentences
    ]
    set_weights(dict(model.named_children()), given.weights)
    return CharacterTagging(examples, model)


def parsing(given: Given) -> Parsing:
    model = TransitionParser(**given.sizes)
    columns = (given.lists(name) for name in ("word", "head", "relation"))
    model.load_state_dict({name: torch.from_numpy(value) for name, value in given.weights.items()})
    return Parsing([Sentence(*sentence) for sentence in zip(*columns, strict=True)], model)


Reader = Callable[[Given], Task]


class SentenceProgram(TorchProgram):
    """A tagger of either kind, or a parser, as ``read`` says."""

    def __init__(self, read: Reader, given: Given) -> None:
        self.task = read(given)
        self.start(self.task.model, given)


class OneByOne(SentenceProgram):
    def batch_loss(self, batch: Batch) -> Tensor:
        return torch.stack([self.model(self.task.examples[number]) for number in batch]).sum()


class Padded(SentenceProgram):
    """One fused kernel for each direction, over padded sentences."""

    task: ByHand

    def batch_loss(self, batch: Batch) -> Tensor:
        return self.task.by_hand(batch)


class Packed(SentenceProgram):
    """One bidirectional `nn.LSTM` over packed sentences, which has no padding."""

    task: Tagging

    def __init__(self, read: Reader, given: Given) -> None:
        super().__init__(read, given)
        context = self.task.model.context
        self.lstm = over_sequences(context.rightward, context.leftward)

    def batch_loss(self, batch: Batch) -> Tensor:
        words = pack_sequence([self.task.words[number] for number in batch], enforce_sorted=False)
        tags = pack_sequence([self.task.tags[number] for number in batch], enforce_sorted=False)
        states, _ = self.lstm(PackedSequence(self.task.embed(words.data), *words[1:]))
        return F.cross_entropy(self.task.score(states.data), tags.data, reduction="sum")


class OnTheFly(SentenceProgram):
    """No cell marked, nothing kept: the program for one sentence as it is."""

    def __init__(self, read: Reader, given: Given) -> None:
        super().__init__(read, given)
        self.batched = fl.batch(self.model, stack=True, scheduler=self.task.scheduler)

    def batch_loss(self, batch: Batch) -> Tensor:
        losses: Tensor = self.batched([self.task.examples[number] for number in batch])
        return losses.sum()


class InCells(SentenceProgram, Recorded):
    """The same program in cells."""

    def __init__(self, read: Reader, given: Given) -> None:
        super().__init__(read, given)
        self.with_cells = self.task.with_cells()
        self.batched = fl.batch(self.with_cells, stack=True)
        self.examples = self.task.examples

    def record(self, example: Any) -> fl.Recording:
        return fl.record(self.with_cells, example)

    def plan(self, recordings: list[fl.Recording]) -> Any:
        return fl.plan(recordings)

    def run(self, batch: Any) -> Tensor:
        losses: Tensor = (self.batched if isinstance(batch, list) else self.batched.run)(batch)
        return losses.sum()


class SentenceReader(nn.Module):
    """The same model for one sentence, with torch's own LSTM over all of it: its states and tags."""

    def __init__(self, model: BiLSTMTagger) -> None:
        super().__init__()
        self.embed, self.lstm = model.embed, over_sequences(model.context.rightward, model.context.leftward)

    def forward(self, sentence: TaggedSentence) -> tuple[list[Tensor], np.ndarray]:
        states, _ = self.lstm(self.embed(torch.tensor(sentence.words)))
        return list(states), np.array(sentence.tags)


class SpellingReader(nn.Module):
    """The same for rare words by their characters."""

    def __init__(self, model: CharacterTagger) -> None:
        super().__init__()
        self.embed, self.embed_character = fl.cell(model.embed), fl.cell(model.embed_character)
        self.spell = over_sequences(model.spell_rightward, model.spell_leftward)
        self.lstm = over_sequences(model.context.rightward, model.context.leftward)

    def vector(self, token: Token) -> Tensor:
        if token.word is not None:
            known: Tensor = self.embed(token.word)
            return known
        _, (last, _) = self.spell(torch.stack([self.embed_character(character) for character in token.characters]))
        flat: Tensor = last.flatten()
        return flat

    def forward(self, sentence: list[Token]) -> tuple[list[Tensor], np.ndarray]:
        states, _ = self.lstm(torch.stack([self.vector(token) for token in sentence]))
        return list(states), np.array([token.tag for token in sentence])


class OverSequences(SentenceProgram, Recorded):
    """The LSTM of a sentence is one call; all states are judged at once."""

    task: Tagging | CharacterTagging

    def __init__(self, read: Reader, given: Given) -> None:
        super().__init__(read, given)
        model = self.task.model
        self.reader = SpellingReader(model) if isinstance(model, CharacterTagger) else SentenceReader(model)
        # By depth, sentences in which every word is known would be read before the others, by steps of their own.
        self.scheduler = fl.ByAgenda()
        self.batched = fl.batch(self.reader, stack=True, scheduler=self.scheduler)
        self.examples = self.task.examples

    def record(self, example: Any) -> fl.Recording:
        return fl.record(self.reader, example)

    def plan(self, recordings: list[fl.Recording]) -> Any:
        return fl.plan(recordings, self.scheduler)

    def run(self, batch: Any) -> Tensor:
        states, tags = (self.batched if isinstance(batch, list) else self.batched.run)(batch)
        return F.cross_entropy(self.task.score(states.values), torch.from_numpy(np.concatenate(tags)), reduction="sum")


class OverSequencesKept(Kept, OverSequences):
    pass


class OverSequencesInWorkers(InWorkers, OverSequences):
    pass


class InCellsKept(Kept, InCells):
    pass


class InCellsInWorkers(InWorkers, InCells):
    pass


WAYS: dict[str, type[SentenceProgram]] = {
    "one-by-one": OneByOne,
    "by-hand": Padded,
    "by-hand-packed": Packed,
    "on-the-fly": OnTheFly,
    "cells": InCells,
    "cells-kept": InCellsKept,
    "cells-in-workers": InCellsInWorkers,
    "sequences": OverSequences,
    "sequences-kept": OverSequencesKept,
    "sequences-in-workers": OverSequencesInWorkers,
}


def programs(read: Reader, ways: Iterable[str]) -> dict[str, Callable[[Given], TorchProgram]]:
    return {way: partial(WAYS[way], read) for way in ways}


TAGGER = programs(tagging, WAYS)
# Packing words whose vectors are themselves computed from packed characters is nobody's idea of code by hand.
CHARACTER_TAGGER = programs(character_tagging, [way for way in WAYS if way != "by-hand-packed"])
# Its own decisions lead the way, so that nothing can be recorded or laid out beforehand.
PARSER = programs(parsing, ("one-by-one", "on-the-fly", "cells"))
