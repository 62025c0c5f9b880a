"""What a command says when it cannot go on: one line, and an exit code. Needs no torch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from foldloom.errors import FoldloomError

MISTAKEN = 2
"""The exit code of a command that was told wrong things, or that the machine refuses something: room on a disk, say."""
INTERRUPTED = 130
"""What a shell says of a program that Ctrl-C ended."""

_OUTSIDE = ("DataLoader worker", "can't allocate memory", "out of memory", "not enough memory")
"""Parts of messages with which torch says that a process was killed, or that there is no memory."""


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, without the usage of all options."""

    def error(self, message: str) -> NoReturn:
        fail(f"{message} (see {self.prog} --help)", self.prog)


def fail(message: str, program: str = "foldloom") -> NoReturn:
    print(f"{program}: {' '.join(message.split())}", file=sys.stderr, flush=True)
    sys.exit(MISTAKEN)


@contextmanager
def one_line(program: str = "foldloom") -> Iterator[None]:
    """Errors of ours, of the operating system and of missing packages are said in a line. Others are mistakes of the program, and are
    shown with where they were made."""
    try:
        yield
    except BrokenPipeError:
        # Whoever read our output has had enough. What is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(MISTAKEN)
    except (FoldloomError, ModuleNotFoundError) as error:
        fail(str(error), program)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), program)
    except MemoryError:
        fail("there is not enough memory for that: a smaller batch or model may help", program)
    except RuntimeError as error:
        if not any(part in str(error) for part in _OUTSIDE):
            raise
        fail(str(error), program)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def whole(at_least: int, at_most: int | None = None) -> Callable[[str], int]:
    """A type of argparse: a whole number in a range."""
    wanted = (
        f"a whole number from {at_least}" + ("" if at_most is None else f" to {at_most:,}") + " on" * (at_most is None)
    )

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = at_least - 1
        if number < at_least or (at_most is not None and number > at_most):
            raise argparse.ArgumentTypeError(f"expected {wanted}, not {text[:60]!r}")
        return number

    return read


Commands = Any
"""What argparse returns from ``add_subparsers``; it has no public name."""
