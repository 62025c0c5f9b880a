"""Train a Tree-LSTM to tell which operator was hidden in an expression, on the standard library of the Python that runs this.

The model, `foldloom.models.ChildSumTreeLSTM`, is written for one expression; batches of differently shaped ones are run together. The task,
`foldloom.tasks.code`, is also that of ``foldloom train code``. Run by ``make demo``.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

from foldloom.data.python_source import HIDDEN, OPERATORS
from foldloom.planning.schedulers import ByDepth
from foldloom.tasks.code import CodeTask, HiddenOperator
from foldloom.training import Run, train
from foldloom.training.comparing import compare_on
from foldloom.training.evaluating import evaluate, predictions
from foldloom.views.asking import survey_of
from foldloom.views.picture import picture_of


def most_frequent(data: Sequence[HiddenOperator], asked: Sequence[HiddenOperator]) -> tuple[float, float]:
    """How often the most frequent operator is right; and that of the same kind of operation, which a hidden operator does not hide."""
    overall = Counter(item.kind for item in data).most_common(1)[0][0]
    kinds: dict[str, Counter[str]] = {}
    for item in data:
        kinds.setdefault(operation_of(item), Counter())[item.kind] += 1
    of_operation = {operation: found.most_common(1)[0][0] for operation, found in kinds.items()}
    right = [(item.kind == overall, item.kind == of_operation.get(operation_of(item))) for item in asked]
    first, second = (sum(column) / len(asked) for column in zip(*right, strict=True))
    return first, second


def operation_of(item: HiddenOperator) -> str:
    """``BinOp``, ``Compare``, ``BoolOp`` or ``UnaryOp``."""
    return next(node.kind for node in item.tree if any(child.kind == HIDDEN for child in node.children))


def short_ones(items: Sequence[HiddenOperator]) -> Iterator[HiddenOperator]:
    """Expressions that fit a line and are not too plain, in random order."""
    for item in random.Random(0).sample(items, len(items)):
        if 20 <= len(item.expression.text) <= 60 and "\n" not in item.expression.text:
            yield item


def show_predictions(run: Run, items: Sequence[HiddenOperator]) -> None:
    answers = predictions(run.model(), [run.task.example(item) for item in items])
    for item, predicted in zip(items, answers, strict=True):
        answer = run.task.answer(item, predicted)
        guesses = ", ".join(
            f"{written} {share:.0%}" for written, share in answer["probabilities"].items() if share > 0.01
        )
        verdict = "right" if answer["operator"] == OPERATORS[item.kind] else "wrong"
        path = Path(item.expression.name)
        print(f"  {answer['expression']}    ({path.parent.name}/{path.name}, line {item.expression.line})")
        print(f"      was {OPERATORS[item.kind]}, {verdict}: {guesses}")


def free_folder(runs: Path) -> Path:
    return next(path for path in (runs / f"demo-{number}" for number in count(1)) if not path.exists())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expressions", type=int, default=40_000, help="how many to read (40,000)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="where to make the folder of this training (runs)"
    )
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    settings = replace(CodeTask.defaults(), expressions=options.expressions, epochs=options.epochs, seed=options.seed)
    print("reading Python's standard library", flush=True)
    run = Run.new(free_folder(options.runs), "code", settings=settings)
    data = run.data
    print(f"{len(data.train):,} expressions to learn from, {len(data.test):,} of other files to be asked about")
    print(f"for example {data.train[0]}, where {OPERATORS[data.train[0].kind]} is hidden")
    if not train(run):
        raise SystemExit(f"stopped: `foldloom train code --resume {run.folder}` goes on")
    overall, of_operation = most_frequent(data.train, data.test)
    print(
        f"\nof files never seen: {evaluate(run, 'test')['accuracy']:.1%} right; the most frequent operator would be "
        f"{overall:.1%}, the most frequent one of the same kind of operation {of_operation:.1%}"
    )
    print(compare_on(run.task, data, rounds=3))
    print("\nfive of them:")
    show_predictions(run, list(islice(short_ones(data.test), 5)))
    picture = run.folder / "schedule.svg"
    batch = [run.task.example(item) for item in data.train[: settings.batch]]
    picture.write_text(picture_of(survey_of(run.model(), [batch], ByDepth())), encoding="utf-8")
    print(f"\nlearning curve: {run.folder / 'curves.png'}\nhow a batch is scheduled: {picture}")
    print(f"{time.perf_counter() - start:.0f} seconds in all")


if __name__ == "__main__":
    main()
