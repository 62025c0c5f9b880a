"""A tag for every word; rare words are known by their characters alone.

Ling et al., "Finding Function in Form: Compositional Character Models for Open Vocabulary Word Representation", EMNLP 2015,
for rare words only, as in the second task of Neubig, Goldberg, Dyer, "On-the-fly Operation Batching in Dynamic Computation
Graphs", NIPS 2017.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.bilstm_tagger import BiLSTM
from examples.common import WORD_CLASSES, WORDS, demonstrate, made_sentences

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ENDINGS = {"determiner": "e", "adjective": "ful", "noun": "ness", "verb": "ize", "preposition": "ward"}


@dataclass(slots=True)
class Token:
    word: int | None
    """The number of a common word, None for a rare one."""
    characters: list[int]
    tag: int


class CharacterTagger(nn.Module):
    def __init__(
        self,
        words: int = WORDS,
        characters: int = len(LETTERS),
        embedding: int = 32,
        character_embedding: int = 8,
        hidden: int = 24,
        scorer: int = 16,
        tags: int = len(WORD_CLASSES),
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, embedding)
        self.embed_character = nn.Embedding(characters, character_embedding)
        self.spell_rightward = nn.LSTMCell(character_embedding, embedding // 2)
        self.spell_leftward = nn.LSTMCell(character_embedding, embedding // 2)
        self.context = BiLSTM(embedding, hidden)
        self.score = nn.Sequential(nn.Linear(2 * hidden, scorer), nn.Tanh(), nn.Linear(scorer, tags))

    def vector(self, token: Token) -> Tensor:
        if token.word is not None:
            known: Tensor = self.embed(torch.tensor(token.word))
            return known
        characters = [self.embed_character(torch.tensor(character)) for character in token.characters]
        from_left = BiLSTM.run(self.spell_rightward, characters)
        from_right = BiLSTM.run(self.spell_leftward, characters[::-1])
        return torch.cat([from_left[-1], from_right[-1]])

    def forward(self, sentence: list[Token]) -> Tensor:
        states = self.context([self.vector(token) for token in sentence])
        losses = [
            F.cross_entropy(self.score(state), torch.tensor(token.tag))
            for state, token in zip(states, sentence, strict=True)
        ]
        return torch.stack(losses).sum()


def made_examples(count: int, seed: int) -> list[list[Token]]:
    """The tag of a word is its class, which the ending of a rare word tells."""
    source = random.Random(seed)
    class_of_word = {word: name for name, words in WORD_CLASSES.items() for word in words}

    def token(word: int) -> Token:
        name = class_of_word[word]
        spelled = "".join(source.choices(LETTERS, k=source.randint(2, 8))) + ENDINGS[name]
        rare = source.random() < 0.3
        return Token(None if rare else word, [LETTERS.index(c) for c in spelled], list(WORD_CLASSES).index(name))

    return [[token(word) for word in sentence.words] for sentence in made_sentences(count, seed)]


def main() -> None:
    demonstrate(CharacterTagger, made_examples)


if __name__ == "__main__":
    main()
