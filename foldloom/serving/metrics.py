"""What `/metrics` tells, in the format of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from foldloom.serving.requests import Requests

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Metrics:
    def __init__(self, requests: Requests) -> None:
        self._registry = CollectorRegistry()
        for name, text, ask in (
            ("live", "examples that are live", lambda: len(requests.live)),
            ("waiting", "examples that wait for a lane", lambda: len(requests.waiting)),
            ("accepted", "examples accepted so far", lambda: requests.tally.accepted),
            ("refused", "examples refused so far, because too many were waiting", lambda: requests.tally.refused),
            ("expired", "examples whose deadline was past", lambda: requests.tally.expired),
            ("cancelled", "examples that were cancelled", lambda: requests.tally.cancelled),
        ):
            Gauge(f"foldloom_{name}", text, registry=self._registry).set_function(ask)
        self.responses = Counter("foldloom_responses", "responses by status", ["status"], registry=self._registry)
        self.errors = Counter("foldloom_errors", "examples that raised, by kind", ["kind"], registry=self._registry)
        self.seconds = Histogram(
            "foldloom_seconds", "from request to answer", buckets=_SECONDS, registry=self._registry
        )
        self.seconds_waited = Histogram(
            "foldloom_seconds_waited", "until an example had a lane", buckets=_SECONDS, registry=self._registry
        )

    def page(self) -> bytes:
        return generate_latest(self._registry)
