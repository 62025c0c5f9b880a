"""Loading what a package shows when it is first asked for.

``import foldloom`` loads no torch, so that `foldloom.runtime` works where there is none, and starts at once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

_WITH_TORCH = ("greenlet", "torch")
"""What the extra ``torch`` brings."""


def load_on_demand(package: str, names_in: Mapping[str, Sequence[str]]) -> None:
    """``names_in`` says which public names of the package are in which of its modules."""
    module_of_name = {name: module for module, names in names_in.items() for name in names}

    class Package(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name not in module_of_name:
                raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=self)
            try:
                found = getattr(importlib.import_module(f"{package}.{module_of_name[name]}"), name)
            except ModuleNotFoundError as error:
                if error.name not in _WITH_TORCH:
                    raise
                raise ModuleNotFoundError(
                    f"{package}.{name} needs {error.name}, which is not installed: pip install 'foldloom[torch]'. Without it there is "
                    "foldloom.runtime alone, which runs exported models",
                    name=error.name,
                ) from error
            self.__dict__[name] = found
            return found

        def __dir__(self) -> list[str]:
            return sorted({*super().__dir__(), *module_of_name})

    sys.modules[package].__class__ = Package
