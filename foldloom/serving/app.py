"""A server behind HTTP, as an ASGI application."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from foldloom.errors import DataError, DeadlineError, ServerBusyError, ServerClosedError
from foldloom.serving.metrics import Metrics
from foldloom.serving.openapi import openapi
from foldloom.serving.requests import Answer, Requests

GONE = 499
"""What is noted where the client has gone away: nobody reads it."""


class Asked(Protocol):
    """A `Server` or a `GroupServer`."""

    @property
    def requests(self) -> Requests: ...
    def __call__(self, *args: Any, timeout: float | None = None, priority: float = 0) -> Answer: ...
    def close(self, *, drain: bool = True, timeout: float | None = None) -> None: ...


@dataclass(frozen=True)
class RequestLimits:
    """What one request may hold. More is refused with 413."""

    bytes: int = 1 << 20
    nodes: int = 10_000
    """Values, lists and objects of its JSON."""
    depth: int = 200
    examples: int = 256


class RefusedError(Exception):
    def __init__(self, status: int, reason: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, headers


def app_of(server: Asked, parse: Callable[[Any], Any], limits: RequestLimits | None = None) -> Starlette:
    """``parse`` makes an example of what was sent, and raises `DataError` if it cannot. The server is closed when the application ends."""
    handlers = _Handlers(server, parse, limits or RequestLimits())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        handlers.is_ready = False
        await asyncio.to_thread(server.close)

    routes = [
        Route("/predict", handlers.predict, methods=["POST"]),
        Route("/health", handlers.health),
        Route("/ready", handlers.ready),
        Route("/metrics", handlers.metrics),
        Route("/openapi.json", handlers.openapi),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


class _Handlers:
    def __init__(self, server: Asked, parse: Callable[[Any], Any], limits: RequestLimits) -> None:
        self._server, self._parse, self._limits = server, parse, limits
        self._metrics = Metrics(server.requests)
        self.is_ready = True

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        return JSONResponse({"ready": self.is_ready}, 200 if self.is_ready else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(self._metrics.page(), media_type="text/plain; version=0.0.4")

    async def openapi(self, _: Request) -> Response:
        return JSONResponse(openapi())

    async def predict(self, request: Request) -> Response:
        start = time.perf_counter()
        try:
            response = await self._predict(request)
        except RefusedError as refused:
            response = JSONResponse({"error": refused.reason}, refused.status, refused.headers)
        self._metrics.responses.labels(response.status_code).inc()
        self._metrics.seconds.observe(time.perf_counter() - start)
        return response

    async def _predict(self, request: Request) -> Response:
        given = self._checked(_json_of(await self._body(request)))
        is_one = "example" in given
        examples = [self._example(item) for item in ([given["example"]] if is_one else given["examples"])]
        answers = self._ask(examples, given.get("timeout"))
        await self._all_done(request, answers)
        for answer in answers:
            self._metrics.seconds_waited.observe(answer.seconds_waited)
        found = [self._outcome(answer) for answer in answers]
        if is_one:
            (status, outcome) = found[0]
            return JSONResponse(outcome, status)
        return JSONResponse({"results": [outcome for _, outcome in found]})

    async def _body(self, request: Request) -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._limits.bytes:
                raise RefusedError(413, f"the request is larger than {self._limits.bytes} bytes")
            parts.append(part)
        return b"".join(parts)

    def _checked(self, given: Any) -> dict[str, Any]:
        if not isinstance(given, dict) or ("example" in given) == ("examples" in given):
            raise RefusedError(422, 'send {"example": ...} or {"examples": [...]}')
        if "examples" in given and not isinstance(given["examples"], list):
            raise RefusedError(422, "`examples` is a list")
        timeout = given.get("timeout")
        if timeout is not None and (type(timeout) not in (int, float) or not 0 < timeout < math.inf):
            raise RefusedError(422, "`timeout` is a number of seconds, above 0")
        if len(given.get("examples", ())) > self._limits.examples:
            raise RefusedError(413, f"more than {self._limits.examples} examples in one request")
        nodes, level = 0, [given]
        for _ in range(self._limits.depth):
            nodes += len(level)
            if nodes > self._limits.nodes:
                raise RefusedError(413, f"the request has more than {self._limits.nodes} values")
            level = [item for container in level for item in _items(container)]
            if not level:
                return given
        raise RefusedError(413, f"the request is nested more than {self._limits.depth} deep")

    def _example(self, given: Any) -> Any:
        try:
            return self._parse(given)
        except (DataError, ValueError, TypeError, KeyError) as error:
            raise RefusedError(422, f"malformed example: {error}") from error

    def _ask(self, examples: Sequence[Any], timeout: float | None) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for example in examples:
                answers.append(self._server(example, timeout=timeout))
        except (ServerBusyError, ServerClosedError) as error:
            for answer in answers:
                answer.cancel()
            status = 429 if isinstance(error, ServerBusyError) else 503
            raise RefusedError(status, str(error), {"Retry-After": "1"}) from error
        return answers

    async def _all_done(self, request: Request, answers: Sequence[Answer]) -> None:
        """Returns when all are done; when the client goes away, they are cancelled."""
        done = asyncio.gather(*map(asyncio.wrap_future, answers), return_exceptions=True)
        gone = asyncio.ensure_future(_gone(request))
        both: list[asyncio.Future[Any]] = [done, gone]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            for answer in answers:
                answer.cancel()
            done.cancel()
            raise RefusedError(GONE, "the client is gone")
        gone.cancel()

    def _outcome(self, answer: Answer) -> tuple[int, dict[str, Any]]:
        error = answer.exception()
        if error is None:
            return 200, {"result": as_json(answer.result())}
        self._metrics.errors.labels(type(error).__name__).inc()
        if isinstance(error, DeadlineError):
            return 504, {"error": str(error)}
        return 422, {"error": f"{type(error).__name__}: {error}"}


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json_of(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(422, f"not JSON: {error}") from error


def _items(container: Any) -> Sequence[Any]:
    if isinstance(container, dict):
        return [*container.values()]
    return container if isinstance(container, list) else ()


def as_json(result: Any) -> Any:
    """A result in JSON's terms: tensors and arrays as lists; what is not a finite number as null."""
    if isinstance(result, (torch.Tensor, np.ndarray, np.generic)):
        return as_json(result.tolist())
    if isinstance(result, float):
        return result if math.isfinite(result) else None
    if result is None or isinstance(result, (bool, int, str)):
        return result
    if isinstance(result, dict):
        return {str(key): as_json(item) for key, item in result.items()}
    if isinstance(result, (list, tuple, set, frozenset)):
        return [as_json(item) for item in result]
    if hasattr(result, "__dict__"):
        return as_json(vars(result))
    return str(result)
