"""Samplers for a batch by hand: all examples in lockstep, those that are done masked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.gallery.decoding import END, Layer, Prompt, Writer
from examples.gallery.nuts import NUTS, Chain
from examples.gallery.particles import ParticleFilter, Series


class Draws:
    """Random numbers for all examples of a batch at once."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.count = len(seeds)
        self.generator = torch.Generator().manual_seed(seeds[0])

    def uniform(self, active: Tensor) -> Tensor:
        """One for each example; those of examples that are not active do not matter."""
        return torch.rand(self.count, generator=self.generator)

    def normal(self, active: Tensor, size: int) -> Tensor:
        return torch.randn(self.count, size, generator=self.generator)

    def choices(self, active: Tensor, probabilities: Tensor) -> Tensor:
        return torch.multinomial(probabilities, 1, generator=self.generator).squeeze(1)


# --- the No-U-Turn sampler ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Trees:
    """One `examples.gallery.nuts.Tree` for each chain."""

    first_q: Tensor
    first_p: Tensor
    last_q: Tensor
    last_p: Tensor
    draw: Tensor
    states: Tensor
    goes_on: Tensor

    def where(self, active: Tensor, other: Trees) -> Trees:
        """The trees of ``other`` for active chains."""
        return Trees(
            *(
                torch.where(active.view(-1, *[1] * (old.dim() - 1)), new, old)
                for old, new in ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
            )
        )


class LockstepNUTS:
    """All chains double their trajectories together; the longest one decides how often."""

    def __init__(self, program: NUTS, draws: Draws) -> None:
        self.program, self.draws = program, draws
        self.densities = torch.vmap(program.log_density)
        self.gradients = torch.vmap(program.gradient)

    def joint(self, q: Tensor, p: Tensor) -> Tensor:
        return self.densities(q) - 0.5 * p.square().sum(1)

    def build(self, q: Tensor, p: Tensor, slice: Tensor, direction: Tensor, depth: int, active: Tensor) -> Trees:
        if depth == 0:
            step = (direction * self.program.step).unsqueeze(1)
            p = p + 0.5 * step * self.gradients(q)
            q = q + step * p
            p = p + 0.5 * step * self.gradients(q)
            joint = self.joint(q, p)
            return Trees(q, p, q, p, q, (slice <= joint).long(), slice < joint + 1000)
        trees = self.build(q, p, slice, direction, depth - 1, active)
        active = active & trees.goes_on
        return self.grow(trees, slice, direction, depth - 1, active) if active.any() else trees

    def grow(self, trees: Trees, slice: Tensor, direction: Tensor, depth: int, active: Tensor) -> Trees:
        back = (direction < 0).unsqueeze(1)
        start_q = torch.where(back, trees.first_q, trees.last_q)
        start_p = torch.where(back, trees.first_p, trees.last_p)
        other = self.build(start_q, start_p, slice, direction, depth, active)
        first_q, first_p = (
            torch.where(back, other.first_q, trees.first_q),
            torch.where(back, other.first_p, trees.first_p),
        )
        last_q, last_p = torch.where(back, trees.last_q, other.last_q), torch.where(back, trees.last_p, other.last_p)
        states = trees.states + other.states
        takes = other.goes_on & (self.draws.uniform(active & other.goes_on) * states < other.states)
        span = last_q - first_q
        turns = ((span * first_p).sum(1) < 0) | ((span * last_p).sum(1) < 0)
        draw = torch.where(takes.unsqueeze(1), other.draw, trees.draw)
        grown = Trees(first_q, first_p, last_q, last_p, draw, states, other.goes_on & ~turns)
        return trees.where(active, grown)

    def __call__(self, chains: Sequence[Chain]) -> list[Tensor]:
        q, everywhere = torch.stack([chain.start for chain in chains]), torch.ones(len(chains), dtype=torch.bool)
        drawn = []
        for _ in range(self.program.draws):
            p = self.draws.normal(everywhere, q.shape[1])
            slice = self.joint(q, p) + self.draws.uniform(everywhere).log()
            trees = Trees(q, p, q, p, q, torch.ones(len(chains), dtype=torch.long), everywhere)
            for depth in range(self.program.deepest):
                active = trees.goes_on
                direction = torch.where(self.draws.uniform(active) < 0.5, 1, -1)
                trees = self.grow(trees, slice, direction, depth, active)
                if not trees.goes_on.any():
                    break
            q = trees.draw
            drawn.append(q)
        return list(torch.stack(drawn, 1))


def nuts(program: NUTS, chains: Sequence[Chain], draws: type[Draws] = Draws) -> list[Tensor]:
    return LockstepNUTS(program, draws([chain.seed for chain in chains]))(chains)


# --- the particle filter -----------------------------------------------------------------------------------------


def particle_filter(
    program: ParticleFilter, examples: Sequence[Series], draws: type[Draws] = Draws
) -> list[tuple[Tensor, Tensor, int]]:
    """All series side by side, padded to the longest; whoever need not resample keeps its particles."""
    random, particles = draws([series.seed for series in examples]), program.particles
    lengths = torch.tensor([len(series.returns) for series in examples])
    longest = int(lengths.max())
    returns = torch.tensor([series.returns + [0.0] * (longest - len(series.returns)) for series in examples])
    everywhere = lengths > 0
    x = random.normal(everywhere, particles) * program.noise / math.sqrt(1 - program.persistence**2)
    log_weights = torch.full(x.shape, -math.log(particles))
    evidence, resampled = torch.zeros(len(examples)), torch.zeros(len(examples), dtype=torch.long)
    for time in range(longest):
        active = time < lengths
        moved = program.persistence * x + program.noise * random.normal(active, particles)
        square = returns[:, time : time + 1].square()
        weighted = log_weights - 0.5 * (math.log(2 * math.pi) + moved + square * torch.exp(-moved))
        total = torch.logsumexp(weighted, 1)
        evidence = torch.where(active, evidence + total, evidence)
        x = torch.where(active.unsqueeze(1), moved, x)
        log_weights = torch.where(active.unsqueeze(1), weighted - total.unsqueeze(1), log_weights)
        weights = log_weights.exp()
        resamples = active & (1 / weights.square().sum(1) < particles / 2)
        if resamples.any():
            start = random.uniform(resamples)
            places = (torch.arange(particles) + start.unsqueeze(1)) / particles
            ancestors = torch.searchsorted(weights.cumsum(1), places).clamp(max=particles - 1)
            x = torch.where(resamples.unsqueeze(1), x.gather(1, ancestors), x)
            log_weights = torch.where(resamples.unsqueeze(1), -math.log(particles), log_weights)
            resampled = resampled + resamples
    volatilities = (log_weights.exp() * torch.exp(x / 2)).sum(1)
    return list(zip(evidence, volatilities, resampled.tolist(), strict=True))


# --- decoding ----------------------------------------------------------------------------------------------------


def _attended(layer: Layer, x: Tensor, keys: Tensor, values: Tensor, number: int) -> Tensor:
    q, k, v = layer.qkv(layer.before(x)).view(len(x), 3, layer.heads, -1).unbind(1)
    keys[:, number], values[:, number] = k, v
    past = slice(0, number + 1)
    attended = F.scaled_dot_product_attention(
        q.unsqueeze(2), keys[:, past].transpose(1, 2), values[:, past].transpose(1, 2)
    )
    x = x + layer.out(attended.flatten(1))
    return x + layer.feed(layer.between(x))


@torch.no_grad()
def decoding(program: Writer, prompts: Sequence[Prompt], draws: type[Draws] = Draws) -> list[list[int]]:
    """All texts side by side, in caches that are made once; those that have ended are written on until all have."""
    random = draws([prompt.seed for prompt in prompts])
    tokens = [list(prompt.tokens) for prompt in prompts]
    size, heads = program.embed.embedding_dim, program.heads
    shape = (len(program.layers), 2, len(prompts), program.longest, heads, size // heads)
    caches = torch.empty(shape, dtype=program.embed.weight.dtype)
    writes = torch.ones(len(prompts), dtype=torch.bool)
    for number in range(program.longest):
        now = torch.tensor([of_one[number] if number < len(of_one) else END for of_one in tokens])
        x = program.embed(now) + program.position(torch.tensor(number))
        for layer, (keys, values) in zip(program.layers, caches, strict=True):
            x = _attended(cast(Layer, layer), x, keys, values, number)
        at_end = torch.tensor([number == len(of_one) - 1 for of_one in tokens]) & writes
        if not at_end.any():
            continue
        chosen = random.choices(at_end, program.next(x).softmax(1))
        for example in at_end.nonzero().flatten().tolist():
            tokens[example].append(int(chosen[example]))
            writes[example] = tokens[example][-1] != END
        if not writes.any():
            break
    return [of_one[len(prompt.tokens) :] for of_one, prompt in zip(tokens, prompts, strict=True)]
