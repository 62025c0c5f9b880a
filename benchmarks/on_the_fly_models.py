"""The four tasks of Neubig, Goldberg, Dyer, "On-the-fly Operation Batching in Dynamic Computation Graphs", NIPS 2017.

The programs are those of ``examples``, at the sizes of the paper: nothing in them knows of batches. Beside each stands what one
writes by hand where that can be done, on the same weights: padded sequences for the taggers, level by level for the trees.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import foldloom as fl
from benchmarks import tree_lstm_models
from benchmarks.corpora import (
    character_task,
    headed_words,
    labelled_trees,
    parsing_task,
    phrase_of,
    tagged_words,
    tagging_task,
)
from examples.bilstm_tagger import BiLSTM, BiLSTMTagger, TaggedSentence
from examples.character_tagger import CharacterTagger, Token
from examples.common import Phrase, Sentence
from examples.transition_parser import Parse, TransitionParser
from examples.tree_lstm import TreeLSTM
from foldloom.models.arc_hybrid import SHIFT, Configuration, Oracle


class Task(ABC):
    """A program, and sentences to train it on."""

    cells: tuple[str, ...]
    """The modules that one would make cells."""
    model: nn.Module
    examples: list[Any]
    sizes: str
    scheduler: fl.Scheduler = fl.ByDepth()
    """What suits it, without cells."""

    def with_cells(self) -> Any:
        """The program with some of its modules made cells, on the same weights."""
        model = copy.deepcopy(self.model, {id(weights): weights for weights in self.model.parameters()})
        for path in self.cells:
            owner, _, name = path.rpartition(".")
            setattr(model.get_submodule(owner), name, fl.cell(model.get_submodule(path)))
        return model

    @abstractmethod
    def size(self, number: int) -> int:
        """How much work an example is, to pick a fair few of a batch."""


class ByHand(Task):
    """A task that can be batched by hand."""

    over_sequences = False
    """Whether by hand, even one sentence alone runs in few large kernels."""

    @abstractmethod
    def by_hand(self, numbers: Sequence[int]) -> Tensor:
        """The summed loss of some of the examples."""


class Tagging(ByHand):
    model: BiLSTMTagger
    cells = ("embed", "context.rightward", "context.leftward", "score")
    over_sequences = True

    def __init__(self, examples: list[TaggedSentence], model: BiLSTMTagger) -> None:
        self.examples, self.model = examples, model
        model.embed.sparse = True
        self.sizes = (
            f"{_described(model.embed)}, LSTMs of {model.context.rightward.hidden_size}, {_described(model.score)}"
        )
        self.context = BothDirections(model.context.rightward, model.context.leftward)
        self.words = [torch.tensor(example.words) for example in self.examples]
        self.tags = [torch.tensor(example.tags) for example in self.examples]
        self.embed, self.score = model.embed, model.score

    @classmethod
    def of_paper(cls, folder: Path | None, count: int) -> Tagging:
        examples, words, tags = tagging_task(tagged_words(folder))
        return cls(examples[:count], BiLSTMTagger(words, embedding=128, hidden=50, scorer=32, tags=tags))

    def by_hand(self, numbers: Sequence[int]) -> Tensor:
        states = self.context.states(self.embed, [self.words[number] for number in numbers])
        tags = torch.cat([self.tags[number] for number in numbers])
        return F.cross_entropy(self.score(states), tags, reduction="sum")

    def size(self, number: int) -> int:
        return len(self.examples[number].words)


class CharacterTagging(ByHand):
    model: CharacterTagger
    cells = (
        "embed",
        "embed_character",
        "spell_rightward",
        "spell_leftward",
        "context.rightward",
        "context.leftward",
        "score",
    )
    over_sequences = True

    def __init__(self, examples: list[list[Token]], model: CharacterTagger) -> None:
        self.examples, self.model = examples, model
        model.embed.sparse = True
        self.sizes = (
            f"{_described(model.embed)}, the rest by {_described(model.embed_character, 'characters')}, "
            f"LSTMs of {model.spell_rightward.hidden_size} and {model.context.rightward.hidden_size}, {_described(model.score)}"
        )
        self.context = BothDirections(model.context.rightward, model.context.leftward)
        self.spelling = BothDirections(model.spell_rightward, model.spell_leftward)
        self.tags = [torch.tensor([token.tag for token in example]) for example in self.examples]
        self.spelled = [
            [torch.tensor(token.characters) for token in example if token.word is None] for example in self.examples
        ]
        self.words = [_words_and_rare(example) for example in self.examples]
        self.embed, self.embed_character, self.score = model.embed, model.embed_character, model.score

    @classmethod
    def of_paper(cls, folder: Path | None, count: int) -> CharacterTagging:
        examples, words, characters, tags = character_task(tagged_words(folder))
        model = CharacterTagger(
            words, characters, embedding=128, character_embedding=20, hidden=50, scorer=32, tags=tags
        )
        return cls(examples[:count], model)

    def by_hand(self, numbers: Sequence[int]) -> Tensor:
        common, place = self._places(numbers)
        vectors = self.embed(common)
        spelled = [characters for number in numbers for characters in self.spelled[number]]
        if spelled:
            vectors = torch.cat([vectors, self.spelling.last_states(self.embed_character, spelled)])
        states = self.context.states(lambda rows: F.embedding(rows, vectors), place)
        tags = torch.cat([self.tags[number] for number in numbers])
        return F.cross_entropy(self.score(states), tags, reduction="sum")

    def _places(self, numbers: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """The common words of a batch, and for each sentence where its words stand among those and then the rare ones."""
        words = [self.words[number] for number in numbers]
        flat = np.concatenate(words)
        is_rare = flat < 0
        place = np.where(is_rare, (~is_rare).sum() + is_rare.cumsum() - 1, (~is_rare).cumsum() - 1)
        places = torch.from_numpy(place).split([len(sentence) for sentence in words])
        return torch.from_numpy(flat[~is_rare]), list(places)

    def size(self, number: int) -> int:
        example = self.examples[number]
        return len(example) + sum(len(token.characters) for token in example if token.word is None)


class _Read(nn.Module):
    def __init__(self, model: TreeLSTM) -> None:
        super().__init__()
        self.embed, self.leaf = model.embed, model.leaf

    def forward(self, word: Tensor) -> tuple[Tensor, Tensor]:
        return self.leaf(self.embed(word))  # type: ignore[no-any-return]


class _Loss(nn.Module):
    def __init__(self, model: TreeLSTM) -> None:
        super().__init__()
        self.classify = model.classify

    def forward(self, state: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.classify(state), label, reduction="none")


class TreeLSTMInCells(nn.Module):
    """The same program with what always goes together in one cell: reading a word, merging, judging a state."""

    def __init__(self, model: TreeLSTM) -> None:
        super().__init__()
        self.read, self.merge, self.loss = fl.cell(_Read(model)), fl.cell(model.merge), fl.cell(_Loss(model))

    def forward(self, phrase: Phrase) -> Tensor:
        read, merge, loss = self.read, self.merge, self.loss
        losses: list[Tensor] = []

        def visit(part: Phrase) -> tuple[Tensor, Tensor]:
            state = read(part.word) if part.parts is None else merge(visit(part.parts[0]), visit(part.parts[1]))
            losses.append(loss(state[0], part.sentiment))
            return state  # type: ignore[no-any-return]

        visit(phrase)
        return torch.stack(losses).sum()


class TreeSentiment(ByHand):
    def with_cells(self) -> TreeLSTMInCells:
        return TreeLSTMInCells(self.model)  # type: ignore[arg-type]

    def __init__(self, folder: Path | None, count: int) -> None:
        trees, words = labelled_trees(folder, count)
        trees = trees[:count]
        self.examples = [phrase_of(tree) for tree in trees]
        self.model = model = TreeLSTM(words, embedding=300, hidden=150)
        model.embed.sparse = True
        self.sizes = f"{words:,} words of 300, states of 150, 5 labels"
        self.flat = [tree_lstm_models.flatten(tree) for tree in trees]
        self.level_by_level = tree_lstm_models.TreeLSTM(words, 300, 150)
        leaf, merge = self.level_by_level.leaf.function, self.level_by_level.merge.function
        leaf.embed, leaf.gates, merge.gates = model.embed, model.leaf.gates, model.merge.gates
        self.level_by_level.classify = model.classify

    def by_hand(self, numbers: Sequence[int]) -> Tensor:
        plan = tree_lstm_models.plan_by_hand([self.flat[number] for number in numbers])
        return tree_lstm_models.loss_by_hand(self.level_by_level, plan)

    def size(self, number: int) -> int:
        return len(self.flat[number].word)


class ParserOverSequences(TransitionParser):
    """The same program, with torch's own LSTM over all words of a sentence."""

    def __init__(self, model: TransitionParser) -> None:
        nn.Module.__init__(self)
        self.embed, self.root, self.nothing = model.embed, model.root, model.nothing
        self.score, self.relate = model.score, model.relate
        self.lstm = over_layers([layer for layer in model.context if isinstance(layer, BiLSTM)])

    def read(self, words: list[int]) -> list[Tensor]:
        states, _ = self.lstm(self.embed(torch.tensor([*words, self.root])))
        return list(states)


class _Decide(nn.Module):
    """The scores of all actions, and the best of those that are legal, which are the bits of a number."""

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.score = score
        self.is_illegal: Tensor
        self.register_buffer("is_illegal", torch.arange(8).unsqueeze(1) >> torch.arange(3) & 1 == 0)

    def forward(
        self, first: Tensor, second: Tensor, third: Tensor, front: Tensor, legal: Tensor
    ) -> tuple[Tensor, Tensor]:
        scores = self.score(torch.cat((first, second, third, front), 1))
        return scores, scores.masked_fill(self.is_illegal[legal], -torch.inf).argmax(1)


class _Choose(_Decide):
    """The best alone."""

    def forward(self, *seen: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(*seen)[1]


class _Relate(nn.Module):
    """The best relation."""

    def __init__(self, relate: nn.Module) -> None:
        super().__init__()
        self.relate = relate

    def forward(self, *seen: Tensor) -> Tensor:
        best: Tensor = self.relate(torch.cat(seen, 1)).argmax(1)
        return best


class _RelationLoss(_Relate):
    """The loss of the right one."""

    def forward(self, right: Tensor, *seen: Tensor) -> Tensor:  # type: ignore[override]
        return F.cross_entropy(self.relate(torch.cat(seen, 1)), right, reduction="none")


class ParserInCells(nn.Module):
    """The same decisions with what always goes together in one cell: deciding on an action, naming a relation, a loss. Relations are
    named when all heads are known."""

    def __init__(self, model: TransitionParser) -> None:
        super().__init__()
        self.over_sequences = ParserOverSequences(model)
        self.blank = fl.cell(lambda count: model.nothing.expand(len(count), -1))
        self.decide, self.choose = fl.cell(_Decide(model.score)), fl.cell(_Choose(model.score))
        self.action_loss = fl.cell(lambda scores, right: F.cross_entropy(scores, right, reduction="none"))
        self.relate, self.relation_loss = fl.cell(_Relate(model.relate)), fl.cell(_RelationLoss(model.relate))

    def read(self, sentence: Sentence) -> list[Tensor]:
        """The last one stands for words that are missing."""
        return [*self.over_sequences.read(sentence.words), self.blank(0)]

    def forward(self, sentence: Sentence) -> Tensor:
        at, oracle, states = Configuration(len(sentence.words)), Oracle(sentence.heads), self.read(sentence)
        decide, action_loss, relation_loss = self.decide, self.action_loss, self.relation_loss
        losses = []
        while not at.done:
            features = [states[-1 if word is None else word] for word in at.looked_at()]
            legal = at.legal()
            scores, best = decide(*features, _as_bits(legal))
            losses.append(action_loss(scores, oracle.best(at)))
            attached = at.apply(legal[0] if len(legal) == 1 else int(best))
            if attached is not None and at.heads[attached] == oracle.heads[attached]:
                losses.append(relation_loss(sentence.relations[attached], *features))
        return torch.stack(losses).sum()

    def predict(self, sentence: Sentence) -> Parse:
        at, states = Configuration(len(sentence.words)), self.read(sentence)
        choose, relate = self.choose, self.relate
        seen: list[list[Tensor]] = [[]] * at.root
        while not at.done:
            legal = at.legal()
            if legal == [SHIFT]:
                at.apply(SHIFT)
                continue
            features = [states[-1 if word is None else word] for word in at.looked_at()]
            attached = at.apply(legal[0] if len(legal) == 1 else int(choose(*features, _as_bits(legal))))
            if attached is not None:
                seen[attached] = features
        relations = torch.stack([relate(*features) for features in seen])
        return Parse([-1 if head == at.root else head for head in at.heads], relations.tolist())


def _as_bits(actions: list[int]) -> int:
    return sum([1 << action for action in actions])


class Parsing(Task):
    """Its own decisions lead from state to state, so that there is nothing to write by hand short of a batching parser."""

    model: TransitionParser
    scheduler = fl.ByAgenda()

    def with_cells(self) -> ParserInCells:
        return ParserInCells(self.model)

    def __init__(self, examples: list[Sentence], model: TransitionParser) -> None:
        self.examples, self.model, self.words = examples, model, model.root
        model.embed.sparse = True
        self.sizes = (
            f"{_described(model.embed)}, {len(model.context)} layers of LSTMs of {model.nothing.numel() // 2}, "
            f"{_described(model.relate, 'relations')}"
        )

    @classmethod
    def of_paper(cls, folder: Path | None, count: int) -> Parsing:
        examples, words, relations = parsing_task(headed_words(folder))
        model = TransitionParser(words, embedding=125, hidden=125, layers=2, scorer=100, relations=relations)
        return cls(examples[:count], model)

    def size(self, number: int) -> int:
        return len(self.examples[number].words)


TASKS: dict[str, Callable[[Path | None, int], Task]] = {
    "bilstm": Tagging.of_paper,
    "bilstm-characters": CharacterTagging.of_paper,
    "tree-lstm": TreeSentiment,
    "parser": Parsing.of_paper,
}


class BothDirections:
    """A BiLSTM over padded sequences, on the weights of its cells.

    Both directions run from left to right, one of them over sequences turned round, so that padding comes after all that
    counts. A packed sequence would save the padding, but runs step by step where a padded one is one fused kernel.
    """

    def __init__(self, rightward: nn.LSTMCell, leftward: nn.LSTMCell) -> None:
        self.rightward, self.leftward = over_sequences(rightward), over_sequences(leftward)

    def states(self, look_up: Callable[[Tensor], Tensor], sequences: list[Tensor]) -> Tensor:
        """The state at every element, sequence after sequence."""
        padded, turned, lengths = _padded(sequences)
        from_left, _ = self.rightward(look_up(padded))
        from_right, _ = self.leftward(look_up(padded.gather(0, turned)))
        from_right = from_right.gather(0, turned.unsqueeze(2).expand_as(from_right))
        inside = torch.arange(len(padded)) < lengths.unsqueeze(1)
        return torch.cat([from_left, from_right], 2).transpose(0, 1)[inside]

    def last_states(self, look_up: Callable[[Tensor], Tensor], sequences: list[Tensor]) -> Tensor:
        """The last state of each direction, for every sequence."""
        padded, turned, lengths = _padded(sequences)
        from_left, _ = self.rightward(look_up(padded))
        from_right, _ = self.leftward(look_up(padded.gather(0, turned)))
        return torch.cat([from_left, from_right], 2)[lengths - 1, torch.arange(len(sequences))]


def over_sequences(rightward: nn.LSTMCell, leftward: nn.LSTMCell | None = None) -> nn.LSTM:
    """On the weights of a cell; with a second one in both directions."""
    lstm = nn.LSTM(rightward.input_size, rightward.hidden_size, bidirectional=leftward is not None)
    for cell, suffix in ((rightward, ""), (leftward, "_reverse")):
        if cell is not None:
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                setattr(lstm, f"{name}_l0{suffix}", getattr(cell, name))
    return lstm


def over_layers(layers: Sequence[BiLSTM]) -> nn.LSTM:
    """Several layers on the weights of cells."""
    first = layers[0].rightward
    lstm = nn.LSTM(first.input_size, first.hidden_size, num_layers=len(layers), bidirectional=True)
    for number, layer in enumerate(layers):
        for name, weights in over_sequences(layer.rightward, layer.leftward).named_parameters():
            setattr(lstm, name.replace("_l0", f"_l{number}"), weights)
    return lstm


def _padded(sequences: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The sequences as columns, the row that each element has when its sequence is turned round, and their lengths."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    padded = pad_sequence(sequences)
    row = torch.arange(len(padded)).unsqueeze(1)
    return padded, torch.where(row < lengths, lengths - 1 - row, row), lengths


def _described(part: nn.Embedding | nn.Sequential, what: str = "") -> str:
    if isinstance(part, nn.Embedding):
        return f"{part.num_embeddings:,} {what or 'words'} of {part.embedding_dim}"
    hidden, outputs = (layer.out_features for layer in part if isinstance(layer, nn.Linear))
    return f"hidden layer of {hidden}, {outputs} {what or 'tags'}"


def _words_and_rare(tokens: list[Token]) -> np.ndarray:
    return np.array([-1 if token.word is None else token.word for token in tokens])
