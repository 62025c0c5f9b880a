"""What stands last in a cell of a notebook is shown in one look."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

import foldloom as fl

embed, join = fl.cell(nn.Embedding(10, 4)), fl.cell(nn.Bilinear(4, 4, 4))


def state(tree: Any) -> Any:
    return embed(tree) if isinstance(tree, int) else join(state(tree[0]), state(tree[1]))


TREES = [((1, 2), 3), 4, ((1, 2), (3, 4))]


def test_recordings() -> None:
    recordings = [fl.record(state, tree) for tree in TREES]
    assert repr(recordings[0]) == "Recording(5 nodes: 3 x Embedding, 2 x Bilinear)"
    assert repr(fl.record(lambda x: x, torch.ones(2))) == "Recording(0 nodes)"


def test_plans() -> None:
    planned = fl.plan([fl.record(state, tree) for tree in TREES])
    words = r"8 nodes in 3 steps \(mean batch 2.7, largest 4\); 10 rows copied, 2 used in place"
    assert re.fullmatch(rf"Planned\(3 examples: {words}\)", repr(planned))
    assert re.fullmatch(rf"Plan\({words}\)", repr(planned.plan))


def test_explanations() -> None:
    explanation = fl.explain(state, TREES)
    assert repr(explanation) == str(explanation)
    shown: str = explanation._repr_html_()
    assert shown.startswith("<pre")
    assert 'font-weight: bold">3 examples' in shown
    assert "&gt;" in shown
    assert "->" not in shown
    assert re.sub("<.*?>", "", shown).replace("&gt;", ">").count("\n") == str(explanation).count("\n")


def test_profiles() -> None:
    with fl.profile() as profile:
        fl.batch(state)(TREES)
    assert repr(profile) == str(profile)
    assert profile._repr_html_().startswith("<pre")
