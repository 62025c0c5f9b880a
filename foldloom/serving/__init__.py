"""Requests that join and leave a running batch: `fl.Server`."""

from foldloom.serving.requests import Answer
from foldloom.serving.server import Server, ServerStatistics

__all__ = ["Answer", "Server", "ServerStatistics"]
