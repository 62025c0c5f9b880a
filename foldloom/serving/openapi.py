"""The description of the HTTP interface, for `/openapi.json`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any


def openapi() -> dict[str, Any]:
    error = _json({"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}})
    one = {"type": "object", "required": ["example"], "properties": {"example": {}, "timeout": _SECONDS}}
    many = {
        "type": "object",
        "required": ["examples"],
        "properties": {"examples": {"type": "array", "items": {}}, "timeout": _SECONDS},
    }
    answered = {"oneOf": [_has("result", {}), _has("results", {"type": "array", "items": {}})]}
    reasons = {
        "413": "too large: more bytes, values or examples, or nested deeper, than the server takes",
        "422": "malformed, or the program has raised; with the reason",
        "429": "too many requests are waiting; with Retry-After",
        "503": "the server is being shut down",
        "504": "the deadline was past",
    }
    predict = {
        "summary": "The answer to one example, or to several",
        "requestBody": {"required": True, **_json({"oneOf": [one, many]})},
        "responses": {
            "200": {"description": "answered", **_json(answered)},
            **{status: {"description": reason, **error} for status, reason in reasons.items()},
        },
    }
    pages = {"/health": "that it runs", "/ready": "whether it takes requests", "/metrics": "for Prometheus"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "foldloom serve", "version": version("foldloom")},
        "paths": {
            "/predict": {"post": predict},
            **{
                page: {"get": {"summary": text, "responses": {"200": {"description": text}}}}
                for page, text in pages.items()
            },
        },
    }


_SECONDS = {"type": "number", "exclusiveMinimum": 0}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _has(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": [name], "properties": {name: schema}}
