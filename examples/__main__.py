"""Train every program for a few seconds: ``python -m examples``."""

from __future__ import annotations

from examples.common import demonstrate
from examples.programs import PROGRAMS

for program in PROGRAMS.values():
    demonstrate(program.model, program.made_examples)
