"""`requires_grad` of weights that a program switches: what holds for a call is the flag at its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foldloom as fl
from tests.never_wrong.checking import Program, check_program, linear, loss_of, vectors


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = linear()
        self.discriminator = nn.Sequential(linear(), nn.LeakyReLU(0.2), linear(3, 1))
        self.table = nn.Embedding(5, 3, dtype=torch.float64)
        self.weight = nn.Parameter(torch.randn(3, dtype=torch.float64))

    def score(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.discriminator(x) * self.weight.sum()
        return found


def discriminator_frozen(net: Net, x: torch.Tensor) -> Any:
    fake = net.generator(x)
    loss = F.softplus(net.score(fake.detach())) - F.logsigmoid(net.score(x))
    net.discriminator.requires_grad_(False)
    of_generator = F.softplus(-net.score(fake))
    net.discriminator.requires_grad_(True)
    return loss, of_generator, of_generator.requires_grad


def frozen_over_a_wait(net: Net, x: torch.Tensor) -> Any:
    fake = net.generator(x)
    net.discriminator.requires_grad_(False)
    loss = net.score(fake)
    if loss.sum() > 0.1:
        loss = loss * net.score(x)
    net.discriminator.requires_grad_(True)
    return loss


def left_frozen(net: Net, x: torch.Tensor) -> Any:
    before = net.generator(x)
    net.generator.weight.requires_grad = False
    return before, net.generator(x), net.generator.weight.t() @ x, net.generator.weight.requires_grad


def everything_frozen(net: Net, x: torch.Tensor) -> Any:
    net.requires_grad_(False)
    found = net.score(x.detach()), net.weight * 2
    net.requires_grad_(True)
    return found, [part.requires_grad for part in found], net.weight * 2


def looked_up(net: Net, x: torch.Tensor) -> Any:
    before = net.table(torch.tensor([1, 2]))
    net.table.weight.requires_grad_(False)
    found = net.table(torch.tensor([1, 3])), net.table.weight[2] * x
    net.table.weight.requires_grad_(True)
    return before, found, net.table.weight[1] * x


def frozen_before(net: Net, x: torch.Tensor) -> Any:
    net.generator.requires_grad_(False)
    return net.generator(x)


def switched_on_for_a_while(net: Net, x: torch.Tensor) -> Any:
    net.weight.requires_grad_(True)
    found = net.weight * x.detach()
    net.weight.requires_grad_(False)
    return found, net.weight * x, net.weight.requires_grad


PROGRAMS: list[Callable[[Net, torch.Tensor], Any]] = [
    discriminator_frozen, frozen_over_a_wait, left_frozen, everything_frozen, looked_up, frozen_before, switched_on_for_a_while,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("is_frozen", [False, True])
def test_program(program: Callable[[Net, torch.Tensor], Any], is_frozen: bool) -> None:
    nets: list[Net] = []

    def build() -> Program:
        net = Net()
        nets.append(net)
        net.weight.requires_grad_(not is_frozen)
        xs = vectors(5)
        return Program(lambda x: program(net, x), [xs], [*xs, *net.parameters()])

    def loss(results: Any) -> torch.Tensor:
        nets[-1].requires_grad_(True)  # to ask for their gradients
        return loss_of(results)

    check_program(build, loss=loss)


def test_a_cell_of_frozen_weights_is_refused() -> None:
    layer = linear()
    cell = fl.cell(layer)

    def program(x: torch.Tensor) -> Any:
        layer.requires_grad_(False)
        return cell(x)

    with pytest.raises(fl.errors.ArgumentError, match="do not require grad for a while"):
        fl.batch(program)(vectors(2))
