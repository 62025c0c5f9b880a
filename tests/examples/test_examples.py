"""The programs of ``examples``: each runs alone, and batched on the fly it gives what it gives alone."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from benchmarks import corpora
from benchmarks.on_the_fly import KernelCount
from benchmarks.on_the_fly_models import TASKS, ByHand
from examples.beam_search import END
from examples.common import Sentence, demonstrate, made_sentences
from examples.programs import PROGRAMS, Program
from examples.stack_lstm_parser import SHIFT, gold_actions
from foldloom.models.arc_hybrid import Configuration, Oracle
from tests.law import assert_same, check_law, gradients

ASKS_FOR_VALUES = {"recursive autoencoder", "transition parser"}
"""Programs whose loss depends on a branch on computed values: no recording of them can be kept."""

batched_on_the_fly = pytest.mark.skipif(
    not hasattr(fl, "batching"), reason="this version batches cells alone, not any PyTorch code"
)
every_program = pytest.mark.parametrize("name", PROGRAMS)
every_decoder = pytest.mark.parametrize("name", [n for n, p in PROGRAMS.items() if hasattr(p.model, "predict")])


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def small(program: Program, count: int = 7) -> tuple[nn.Module, list[Any]]:
    return program.model(), list(program.made_examples(count, 3))


def without_tensors(value: Any) -> Any:
    """What else there is in a result."""
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, (list, tuple)):
        return [without_tensors(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [without_tensors(getattr(value, field.name)) for field in fields(value)]
    return value


def check_batched(function: Callable[..., Any], examples: list[Any], model: nn.Module) -> None:
    parameters = list(model.parameters())
    expected = fl.one_by_one(function)(examples)
    expected_gradients = gradients(expected, parameters)
    for scheduler in (fl.ByDepth(), fl.ByAgenda()):
        batched = fl.batch(function, scheduler=scheduler)
        actual = batched(examples)
        assert without_tensors(actual) == without_tensors(expected)
        assert_same(actual, expected)
        assert_same(gradients(actual, parameters), expected_gradients)
        with torch.no_grad():
            assert_same(batched(examples), expected)


@every_program
def test_runs_one_by_one(name: str) -> None:
    model, examples = small(PROGRAMS[name], 40)
    losses = fl.one_by_one(model)(examples)
    assert all(loss.shape == () and loss.isfinite() for loss in losses)
    torch.stack(losses).sum().backward()
    for path, weights in model.named_parameters():
        assert weights.grad is not None, f"{path} has no gradient"
        assert weights.grad.isfinite().all()
        assert weights.grad.any(), f"{path} has a gradient of zero"


@every_program
def test_makes_the_same_examples_again(name: str) -> None:
    made = PROGRAMS[name].made_examples
    assert str(made(5, 1)) == str(made(5, 1)) != str(made(5, 2))
    assert len(made(5, 1)) == 5


@every_decoder
def test_predicts_one_by_one(name: str) -> None:
    model, examples = small(PROGRAMS[name])
    predictions = fl.one_by_one(model.predict)(examples)  # type: ignore[arg-type]
    assert len(predictions) == len(examples)


@batched_on_the_fly
@every_program
def test_law(name: str) -> None:
    model, examples = small(PROGRAMS[name])
    check_batched(model, examples, model)


@batched_on_the_fly
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ASKS_FOR_VALUES])
def test_law_of_recordings(name: str) -> None:
    model, examples = small(PROGRAMS[name], 4)
    check_law(model, examples, sources=model.parameters())


@batched_on_the_fly
@every_decoder
def test_law_of_predictions(name: str) -> None:
    model, examples = small(PROGRAMS[name])
    check_batched(model.predict, examples, model)  # type: ignore[arg-type]


@batched_on_the_fly
@every_program
def test_runs_in_fewer_kernels(name: str) -> None:
    """To give what one by one gives is easy for what only runs one by one."""
    model, examples = small(PROGRAMS[name], 24)
    batched, alone = fl.batch(model), fl.one_by_one(model)
    counts = []
    with torch.no_grad():
        batched(examples)  # what is done once for every new signature is not counted
        for run in (batched, alone):
            with KernelCount() as kernels:
                run(examples)
            counts.append(kernels.count)
    assert counts[0] < counts[1] / 2


@batched_on_the_fly
def test_demonstration(capsys: pytest.CaptureFixture[str]) -> None:
    program = PROGRAMS["neural module network"]
    demonstrate(program.model, program.made_examples, seconds=0.1, batch_size=8)
    assert "times as fast" in capsys.readouterr().out


@pytest.mark.parametrize("sentence", made_sentences(20, 5))
def test_oracle_leads_to_the_gold_parse(sentence: Sentence) -> None:
    at, oracle = Configuration(len(sentence.words)), Oracle(sentence.heads)
    while not at.done:
        action = oracle.best(at)
        assert oracle.cost(at, action) == 0
        at.apply(action)
    assert at.heads == oracle.heads


@pytest.mark.parametrize("sentence", made_sentences(10, 6))
def test_oracle_counts_what_is_lost(sentence: Sentence) -> None:
    """Going on as well as possible, exactly the arcs are missed whose loss was counted on the way."""
    at, oracle = Configuration(len(sentence.words)), Oracle(sentence.heads)
    source = torch.Generator().manual_seed(len(sentence.words))
    lost = 0
    while not at.done:
        legal = at.legal()
        action = legal[int(torch.randint(len(legal), (), generator=source))]
        lost += oracle.cost(at, action)
        at.apply(action)
    assert lost == sum(head != gold for head, gold in zip(at.heads, oracle.heads, strict=True))


@pytest.mark.parametrize("sentence", made_sentences(20, 7))
def test_gold_actions_build_the_gold_parse(sentence: Sentence) -> None:
    actions = gold_actions(sentence)
    stack: list[int] = []
    heads = [-1] * len(sentence.words)
    words = iter(range(len(sentence.words)))
    for action in actions:
        if action == SHIFT:
            stack.append(next(words))
            continue
        relation, is_right = divmod(action - 1, 2)
        second, first = stack.pop(), stack.pop()
        head, dependent = (first, second) if is_right else (second, first)
        assert sentence.relations[dependent] == relation
        heads[dependent] = head
        stack.append(head)
    assert heads == sentence.heads


def test_beam_of_one_is_greedy() -> None:
    program = PROGRAMS["beam search"]
    model = program.model(beam=1, longest=8)
    for example in program.made_examples(5, 0):
        memory = model.encode(example.source)
        state, token = memory[-1], END
        tokens: list[Any] = []
        while len(tokens) < 8 and tokens[-1:] != [END]:
            state, log_probabilities = model.next(memory, state, token)
            token = int(log_probabilities.argmax())
            tokens.append(token)
        assert model.predict(example).tokens == tokens


@pytest.mark.parametrize("name", TASKS)
def test_benchmarks_compare_the_same_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "MADE_UP", 40)
    task = TASKS[name](None, 6)
    parameters = list(task.model.parameters())
    expected = torch.stack(fl.one_by_one(task.model)(task.examples)).sum()
    expected_gradients = gradients(expected, parameters)
    others = [torch.stack(fl.one_by_one(task.with_cells())(task.examples)).sum()]
    if isinstance(task, ByHand):
        others += [task.by_hand(range(6)), torch.stack([task.by_hand([number]) for number in range(6)]).sum()]
    for other in others:
        assert_same(other, expected)
        assert_same(gradients(other, parameters), expected_gradients)


def test_tagged_words_are_read(tmp_path: Path) -> None:
    (tmp_path / "wikiner").mkdir()
    (tmp_path / "wikiner" / "train.txt").write_text("A|O b|c|I-PER \nA|O\n", encoding="utf-8")
    read = corpora.tagged_words(tmp_path)
    assert sorted(read) == [[("A", "O")], [("A", "O"), ("b|c", "I-PER")]]
    sentences, words, tags = corpora.tagging_task(sorted(read))
    assert ([sentence.words for sentence in sentences], words, tags) == ([[0], [0, 1]], 2, 2)


def test_headed_words_are_read(tmp_path: Path) -> None:
    rows = ["1\tShe\t_\t_\t_\t_\t2\tnsubj\t_\t_", "2-3\tcannot" + "\t_" * 8, "2\tcan\t_\t_\t_\t_\t0\troot\t_\t_"]
    rows += ["3\tnot\t_\t_\t_\t_\t2\tadvmod\t_\t_", "3.1\tgo" + "\t_" * 8]
    (tmp_path / "ud_ewt").mkdir()
    with gzip.open(tmp_path / "ud_ewt" / "en_ewt-ud-train.conllu.gz", "wt", encoding="utf-8") as file:
        file.write("# text = She cannot\n" + "\n".join(rows) + "\n\n# text = Go\n1\tGo\t_\t_\t_\t_\t0\troot\t_\t_\n\n")
    read = corpora.headed_words(tmp_path)
    assert sorted(read) == [[("Go", -1, "root")], [("She", 1, "nsubj"), ("can", -1, "root"), ("not", 1, "advmod")]]
