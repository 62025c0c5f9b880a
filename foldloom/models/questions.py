"""Predictions whose way depends on values, from an exported file.

A file computes all that it is asked at once, so nothing in it can depend on a value that it has computed. A model that goes where its own
scores lead is exported as a function that answers *questions*. A generator asks them for one example: it yields a question, is sent the
answer, and returns the prediction. For several examples, the questions that are open go to the file together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

Asking = Generator[Any, Any, Any]
"""Yields questions, is sent the answers, returns a prediction."""


def answered(asking: Asking, function: Callable[[Any], Any]) -> Any:
    """What one returns if a function answers its questions.

    >>> def total(numbers):
    ...     sum = 0
    ...     for number in numbers:
    ...         sum += yield number
    ...     return sum
    >>> answered(total([1, 2, 3]), lambda number: 10 * number)
    60
    """
    return answered_together([asking], lambda questions: [function(question) for question in questions])[0]


def answered_together(askings: Sequence[Asking], function: Callable[[list[Any]], Sequence[Any]]) -> list[Any]:
    """What several return if a function answers the open questions of all of them."""
    returned: list[Any] = [None] * len(askings)
    answers: dict[int, Any] = dict.fromkeys(range(len(askings)))
    while answers:
        questions: dict[int, Any] = {}
        for number, answer in answers.items():
            try:
                questions[number] = askings[number].send(answer)
            except StopIteration as ended:
                returned[number] = ended.value
        answers = dict(zip(questions, function(list(questions.values())), strict=True)) if questions else {}
    return returned
