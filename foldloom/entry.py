"""The command ``foldloom``. What runs exported models needs no torch and does not wait for it; all else is in `cli`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from foldloom.runtime import predicting


def main(arguments: Sequence[str] | None = None) -> None:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] != ["predict"]:
        from foldloom import cli

        cli.main(given)
        return
    parser = argparse.ArgumentParser(prog="foldloom")
    predicting.add_command(parser.add_subparsers(required=True, metavar="COMMAND"))
    options = parser.parse_args(given)
    options.run(options)
