"""Serving what answers many examples in one call: an exported file, or the model of a training. Whatever waits when a call has ended is answered by the
next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from foldloom.serving.requests import Answer, Requests
from foldloom.tracing.examples.outcomes import Raised


class GroupServer:
    """Answers requests in groups of up to ``max_live``, in a thread of its own. It is asked as `Server` is; a call that runs is not interrupted."""

    def __init__(
        self,
        predict: Callable[[Sequence[Any]], Sequence[Any]],
        *,
        max_live: int = 256,
        max_waiting: int = 1024,
        timeout: float | None = 2.0,
    ) -> None:
        self._predict, self._max_live, self._timeout = predict, max_live, timeout
        self.requests = Requests(max_waiting)
        self._thread = threading.Thread(target=self._run, name="foldloom.serving", daemon=True)
        self._thread.start()

    def __call__(self, *args: Any, timeout: float | None = None, priority: float = 0) -> Answer:
        return self.requests.add(args, self._timeout if timeout is None else timeout, priority)

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        self.requests.close(drain=drain)
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self.requests.is_over:
            self.requests.wait()
            group: list[tuple[int, Any]] = []
            while len(group) < self._max_live and (taken := self.requests.take()) is not None:
                group.append((taken[0], taken[1][0]))
            given_up = {number: Raised(error) for number, error in self.requests.given_up()}
            found = self._results([example for _, example in group])
            results = zip([number for number, _ in group], found, strict=True)
            self.requests.hand_over([(number, given_up.get(number, result)) for number, result in results])

    def _results(self, examples: Sequence[Any]) -> list[Any]:
        """Where a group fails, each by itself: the others have nothing to do with it."""
        try:
            return list(self._predict(examples)) if examples else []
        except Exception as error:
            if len(examples) == 1:
                return [Raised(error)]
            return [self._results([example])[0] for example in examples]
