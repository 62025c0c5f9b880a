"""Blocks describe themselves: every kind has an interpreter, and a kind can come from outside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom import blocks as fb
from foldloom.blocks.block import Block
from foldloom.blocks.compiler.traversal import all_blocks
from foldloom.blocks.describing import Described, Describing, Ops, Through
from foldloom.errors import ExportedFileError
from foldloom.exporting import static_model
from foldloom.exporting.flows import readers_in
from foldloom.runtime import Model
from foldloom.runtime.program import registry
from tests.exporting.programs import EXPORTED


class Doubled(fb.Block):
    """Each element twice. Its interpreter is in a module that the test writes."""

    def __init__(self) -> None:
        self.gives = self.takes

    def describe(self, to: Describing) -> Described:
        return {"kind": "doubled"}

    def lowered(self, lower: Any) -> Any:
        return lambda values: [value for value in values for _ in range(2)]


INTERPRETER = """
from foldloom.runtime.program import interpreter

@interpreter("doubled")
def doubled(block, to):
    return lambda recorder, values: [value for value in values for _ in range(2)]
"""


def test_a_kind_from_a_module_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kinds_of_the_test", raising=False)
    (tmp_path / "kinds_of_the_test.py").write_text(INTERPRETER)
    fl.export(fb.compile(fb.Map(fb.Scalar()) >> Doubled() >> fb.Sum()), tmp_path / "model.pt2")
    with pytest.raises(ExportedFileError, match=r"a block of kind 'doubled', which is not known here"):
        Model(tmp_path / "model.pt2")
    assert Model(tmp_path / "model.pt2", modules=["kinds_of_the_test"])([[1, 2], []]) == [6, 0]


def test_a_block_that_does_not_describe_itself_is_named() -> None:
    class Silent(fb.Identity):
        def describe(self, to: Describing) -> Described:
            return Block.describe(self, to)

    description = static_model(fb.compile(fb.Scalar() >> Silent() >> fb.Function(torch.neg)), [1]).description
    assert description.program is None
    assert description.why == "Silent() cannot be described without torch: its class does not define `describe`"


def kinds_of(model: fb.Model) -> set[str]:
    program = static_model(model).description.program
    assert program is not None
    return {block["kind"] for block in program["blocks"]}


@pytest.mark.parametrize("name", EXPORTED)
def test_kinds_have_interpreters(name: str) -> None:
    assert all(map(registry.has_interpreter, kinds_of(EXPORTED[name].make())))


def ops_of(model: fb.Model) -> dict[Block, int]:
    return {block: number for number, block in enumerate(all_blocks(model.root)) if block.function is not None}


@pytest.mark.parametrize("name", EXPORTED)
def test_the_default_flow_is_an_upper_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = EXPORTED[name].make()
    tight = readers_in(model.root, ops_of(model))
    default = Block.flow

    def flow(self: Block, inputs: Ops, through: Through) -> Ops:
        return default(self, inputs, through)

    for kind in {type(block) for block in all_blocks(model.root)}:
        monkeypatch.setattr(kind, "flow", flow)
    assert tight <= readers_in(model.root, ops_of(model))


def test_a_learned_start_runs_once_before_the_loop() -> None:
    start = fb.FromTensor(nn.Parameter(torch.ones(())))
    description = static_model(fb.compile(fb.Map(fb.Scalar()) >> fb.Fold(fb.Function(torch.sub), start))).description
    labels = [([description.ops[op].label for op in stage.ops], stage.loop) for stage in description.stages]
    assert labels == [(["_Constant"], False), (["sub"], True)]
