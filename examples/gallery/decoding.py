"""A transformer that writes until it comes to an end symbol, keeping keys and values of what it has read and written."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from examples.gallery.common import demonstrate

TOKENS, END = 64, 0


@dataclass(slots=True)
class Prompt:
    tokens: list[int]
    seed: int


class Layer(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.feed = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        q, k, v = self.qkv(self.before(x)).view(3, self.heads, -1)
        keys.append(k)
        values.append(v)
        scores = (torch.stack(keys) * q).sum(-1) / q.shape[-1] ** 0.5  # [written, heads]
        attended = (scores.softmax(0).unsqueeze(-1) * torch.stack(values)).sum(0)
        x = x + self.out(attended.flatten())
        return x + self.feed(self.between(x))


class Writer(nn.Module):
    def __init__(self, size: int = 64, heads: int = 4, depth: int = 2, longest: int = 64) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(TOKENS, size), nn.Embedding(128, size)
        self.layers = nn.ModuleList([Layer(size, heads) for _ in range(depth)])
        self.next = nn.Linear(size, TOKENS)
        self.heads, self.longest = heads, longest

    @torch.no_grad()
    def forward(self, prompt: Prompt) -> list[int]:
        random = torch.Generator().manual_seed(prompt.seed)
        caches: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in self.layers]
        tokens = list(prompt.tokens)
        for number in range(self.longest):
            x = self.embed(torch.tensor(tokens[number])) + self.position(torch.tensor(number))
            for layer, (keys, values) in zip(self.layers, caches, strict=True):
                x = layer(x, keys, values)
            if number == len(tokens) - 1:
                probabilities = self.next(x).softmax(0)
                tokens.append(int(torch.multinomial(probabilities, 1, generator=random)))
                if tokens[-1] == END:
                    break
        return tokens[len(prompt.tokens) :]


def made_examples(count: int, seed: int) -> list[Prompt]:
    source = random.Random(seed)
    return [
        Prompt([source.randrange(1, TOKENS) for _ in range(source.randint(1, 8))], seed * count + number)
        for number in range(count)
    ]


if __name__ == "__main__":
    demonstrate(Writer().eval(), made_examples)
