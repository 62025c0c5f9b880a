"""Where a folder of data has what to learn from, to choose by and to report on."""

from __future__ import annotations

from pathlib import Path

from foldloom.errors import DataError

PARTS = ("train", "dev", "test")


def files_of_parts(folder: Path, *endings: str) -> dict[str, Path]:
    """The file of each part, by its name: it has the part's name in it, in letters of any case, and one of the endings. There may be none for
    ``test``."""
    if not folder.is_dir():
        raise DataError(f"expected a folder with {_wanted(endings)}", str(folder))
    files = sorted(path for path in folder.iterdir() if path.name.lower().endswith(endings))
    found: dict[str, Path] = {}
    for part in PARTS:
        named = [path for path in files if part in path.name.lower()]
        if len(named) > 1:
            raise DataError(f"expected one file for {part}, not {', '.join(p.name for p in named)}", str(folder))
        if named:
            found[part] = named[0]
        elif part != "test":
            there = ", ".join(path.name for path in files[:10]) or "nothing that ends so"
            raise DataError(f"expected {_wanted(endings)}, but there is none for {part}: there is {there}", str(folder))
    return found


def _wanted(endings: tuple[str, ...]) -> str:
    return f"files with {', '.join(PARTS)} in their names that end in {' or '.join(endings)}"
