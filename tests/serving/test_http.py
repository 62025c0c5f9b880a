"""`foldloom serve`, over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

PROGRAM = """
import time
import torch

def halvings(x):
    if isinstance(x, dict):
        time.sleep(x["sleep"])
        x = x["x"]
    x, count = torch.tensor(float(x)), 0
    while x > 1:
        x, count = x / 2, count + 1
    return {"count": count, "last": x, "nothing": float("nan")}

def endless(x):
    x = torch.tensor(float(x))
    while x < 2:
        x = x * 1
    return x
"""


@contextmanager
def serving(folder: Path, target: str, *more: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "foldloom", "serve", target, "--port", str(port), *more]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                assert ask(port, "GET", "/health")[0] == 200
                break
            except OSError:
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield process, port
    finally:
        process.kill()
        process.communicate()


def ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, raw)
    response = connection.getresponse()
    text = response.read().decode()
    headers = dict(response.getheaders())
    connection.close()
    is_json = headers.get("content-type", "").startswith("application/json")
    return response.status, json.loads(text) if is_json else text, headers


def predict(port: int, body: Any) -> tuple[int, Any, dict[str, str]]:
    return ask(port, "POST", "/predict", body)


def test_answers_and_refusals(tmp_path: Path) -> None:
    with serving(
        tmp_path,
        "program:halvings",
        "--limit",
        "nodes=50",
        "--limit",
        "depth=20",
        "--limit",
        "bytes=2000",
        "--timeout",
        "60",
    ) as (_, port):
        assert predict(port, {"example": 8})[:2] == (200, {"result": {"count": 3, "last": 1.0, "nothing": None}})
        status, found, _ = predict(port, {"examples": [2, "no number", 16]})
        assert status == 200
        assert [result.get("result", {}).get("count") for result in found["results"]] == [1, None, 4]
        assert "ValueError" in found["results"][1]["error"]
        for body in (
            b"{",
            b"[1]",
            b"{}",
            b"\xff",
            b'{"example": 1, "examples": []}',
            b'{"examples": 3}',
            b'{"example": 1, "timeout": -1}',
        ):
            status, found, _ = predict(port, body)
            assert status == 422, body
            assert found["error"]
        assert predict(port, {"example": [1] * 100})[0] == 413
        deep: Any = 1
        for _ in range(30):
            deep = [deep]
        assert predict(port, {"example": deep})[0] == 413
        assert predict(port, b"1" * 3000)[0] == 413
        assert ask(port, "GET", "/ready")[:2] == (200, {"ready": True})
        page = ask(port, "GET", "/metrics")[1]
        assert 'foldloom_responses_total{status="200"} 2.0' in page
        assert "foldloom_live 0.0" in page
        assert "/predict" in ask(port, "GET", "/openapi.json")[1]["paths"]
        assert ask(port, "GET", "/predict")[0] == 405


def test_too_many_too_long_and_gone(tmp_path: Path) -> None:
    with serving(tmp_path, "program:endless", "--max-live", "1", "--max-waiting", "1", "--timeout", "30") as (_, port):
        gone = http.client.HTTPConnection("127.0.0.1", port)
        gone.request("POST", "/predict", json.dumps({"example": 1}))
        _until(port, "foldloom_live 1.0")
        held = http.client.HTTPConnection("127.0.0.1", port)
        held.request("POST", "/predict", json.dumps({"example": 1, "timeout": 3}))
        _until(port, "foldloom_waiting 1.0")
        status, found, headers = predict(port, {"example": 1})
        assert status == 429
        assert "waiting" in found["error"]
        assert headers["retry-after"] == "1"
        gone.close()  # its example is ended, and the next one has its lane
        _until(port, "foldloom_cancelled 1.0")
        with contextlib.closing(held):
            assert held.getresponse().status == 504
        assert predict(port, {"example": 3})[:2] == (200, {"result": 3.0})


def _until(port: int, line: str) -> None:
    deadline = time.monotonic() + 30
    while line not in ask(port, "GET", "/metrics")[1]:
        assert time.monotonic() < deadline, line
        time.sleep(0.02)


def test_requests_under_way_are_answered_after_sigterm(tmp_path: Path) -> None:
    with serving(tmp_path, "program:halvings", "--timeout", "60", "--max-live", "2") as (process, port):
        found: list[Any] = []
        body = {"example": {"sleep": 0.3, "x": 8}}
        threads = [threading.Thread(target=lambda: found.append(predict(port, body)[0])) for _ in range(5)]
        for thread in threads:
            thread.start()
        _until(port, "foldloom_accepted 5.0")
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert found == [200] * 5
        process.wait(30)


def test_what_is_no_target(tmp_path: Path) -> None:
    for target, text in (("nothing", "no folder, no file"), ("program:nothing", "program:nothing")):
        (tmp_path / "program.py").write_text(PROGRAM)
        command = [sys.executable, "-m", "foldloom", "serve", target]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert text in done.stderr
