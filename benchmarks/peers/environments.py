"""Virtual environments for peers that need other packages than Foldloom does: made once, kept in a cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CACHE = Path(os.environ.get("FOLDLOOM_CACHE", Path.home() / ".cache" / "foldloom-peers"))

OWN = "own"
"""The environment that Foldloom itself runs in."""
REQUIREMENTS = {
    "dynet": ("dyNET38==2.2", "cython==3.3.1"),
    "geometric": ("torch==2.13.0", "torch_geometric==2.8.1"),
    "torchfold": ("torch==2.13.0", "torchfold==0.1.0", "numpy==2.4.6"),
    "jax": ("jax[cpu]==0.10.2", "jaxlib==0.10.2"),
}


class EnvironmentMissingError(Exception):
    """The peer cannot be installed here."""


def python_of(environment: str, cache: Path = CACHE) -> Path:
    """The interpreter of an environment, which is made if need be; remade if what it requires has changed."""
    if environment == OWN:
        return Path(sys.executable)
    requirements = REQUIREMENTS[environment]
    constraints = ROOT / "constraints.txt"
    wanted = hashlib.sha256(repr((sys.version, requirements, constraints.read_text())).encode()).hexdigest()
    folder = cache / environment
    interpreter, stamp = folder / "bin" / "python", folder / "made-from"
    if not (stamp.exists() and stamp.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        print(f"installing {' '.join(requirements)} into {folder}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True)
        pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
        made = subprocess.run([*pip, *requirements], capture_output=True, text=True, check=False)
        if made.returncode:
            shutil.rmtree(folder)
            last_line = (made.stderr.strip() or "pip says nothing").splitlines()[-1]
            raise EnvironmentMissingError(f"cannot install {' '.join(requirements)}: {last_line}")
        stamp.write_text(wanted)
    return interpreter


def versions_of(environment: str, cache: Path = CACHE) -> dict[str, str]:
    """What is installed in an environment."""
    command = [str(python_of(environment, cache)), "-m", "pip", "list", "--format=freeze"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(line.split("==", 1) for line in listed.splitlines() if "==" in line)
