"""Writing out what a short form such as "b3 a1 c2" stands for ("b b b a c c"), by beam search until the end symbol.

Bahdanau, Cho, Bengio, "Neural Machine Translation by Jointly Learning to Align and Translate", ICLR 2015; attention by dot
products as in Luong, Pham, Manning, "Effective Approaches to Attention-based Neural Machine Translation", EMNLP 2015.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.common import demonstrate

LETTERS = "abcdef"
MOST_REPEATS = 4
END = len(LETTERS)


@dataclass(slots=True)
class Translation:
    source: list[int]
    target: list[int]
    """Without the end symbol."""


@dataclass(slots=True)
class Hypothesis:
    tokens: list[int]
    score: Tensor
    """The logarithm of its probability."""
    state: Tensor

    @property
    def complete(self) -> bool:
        return self.tokens[-1:] == [END]


class Translator(nn.Module):
    def __init__(
        self,
        source_words: int = len(LETTERS) * MOST_REPEATS,
        target_words: int = len(LETTERS) + 1,
        embedding: int = 16,
        hidden: int = 32,
        beam: int = 3,
        longest: int = 20,
    ) -> None:
        super().__init__()
        self.beam, self.longest = beam, longest
        self.embed_source = nn.Embedding(source_words, embedding)
        self.embed_target = nn.Embedding(target_words, embedding)
        self.encoder, self.decoder = nn.GRUCell(embedding, hidden), nn.GRUCell(embedding + hidden, hidden)
        self.predict_token = nn.Linear(2 * hidden, target_words)

    def encode(self, source: list[int]) -> Tensor:
        state: Tensor | None = None
        states: list[Tensor] = []
        for token in source:
            state = self.encoder(self.embed_source(torch.tensor(token)), state)
            states.append(state)
        return torch.stack(states)

    @staticmethod
    def attend(memory: Tensor, state: Tensor) -> Tensor:
        return torch.softmax(memory @ state, dim=0) @ memory

    def next(self, memory: Tensor, state: Tensor, token: int) -> tuple[Tensor, Tensor]:
        """The next state, and the log probability of every token after it."""
        state = self.decoder(torch.cat([self.embed_target(torch.tensor(token)), self.attend(memory, state)]), state)
        return state, F.log_softmax(self.predict_token(torch.cat([state, self.attend(memory, state)])), dim=-1)

    def forward(self, example: Translation) -> Tensor:
        memory = self.encode(example.source)
        state = memory[-1]
        losses = []
        for previous, token in zip([END, *example.target], [*example.target, END], strict=True):
            state, log_probabilities = self.next(memory, state, previous)
            losses.append(-log_probabilities[token])
        return torch.stack(losses).sum()

    def predict(self, example: Translation) -> Hypothesis:
        """The most probable hypothesis that the beam comes upon."""
        memory = self.encode(example.source)
        beam = [Hypothesis([], torch.zeros(()), memory[-1])]
        # Scores only fall as hypotheses grow, so that nothing overtakes a complete one that leads.
        while len(beam[0].tokens) < self.longest and not beam[0].complete:
            beam = self.extended(memory, beam)
        return beam[0]

    def extended(self, memory: Tensor, beam: list[Hypothesis]) -> list[Hypothesis]:
        """The best hypotheses that are complete or one token longer, the best first."""
        complete = [hypothesis for hypothesis in beam if hypothesis.complete]
        growing = [hypothesis for hypothesis in beam if not hypothesis.complete]
        states, scores = [], [hypothesis.score.unsqueeze(0) for hypothesis in complete]
        for hypothesis in growing:
            state, log_probabilities = self.next(memory, hypothesis.state, (hypothesis.tokens or [END])[-1])
            states.append(state)
            scores.append(hypothesis.score + log_probabilities)
        all_scores = torch.cat(scores)
        best = []
        for choice in all_scores.topk(self.beam).indices.tolist():
            if choice < len(complete):
                best.append(complete[choice])
            else:
                parent, token = divmod(choice - len(complete), self.embed_target.num_embeddings)
                best.append(Hypothesis([*growing[parent].tokens, token], all_scores[choice], states[parent]))
        return best


def made_examples(count: int, seed: int) -> list[Translation]:
    source = random.Random(seed)
    examples = []
    for _ in range(count):
        runs = [(source.randrange(len(LETTERS)), source.randint(1, MOST_REPEATS)) for _ in range(source.randint(1, 5))]
        short = [letter * MOST_REPEATS + repeats - 1 for letter, repeats in runs]
        examples.append(Translation(short, [letter for letter, repeats in runs for _ in range(repeats)]))
    return examples


def main() -> None:
    demonstrate(Translator, made_examples)


if __name__ == "__main__":
    main()
