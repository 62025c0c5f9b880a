"""How an example becomes calls of cells, without torch: interpreters of the blocks that an exported file describes.

The modules beside `registry` and `blocks` hold the interpreters, in the families of `foldloom.blocks.combinators`.
"""

from foldloom.runtime.program import composition, computing, dispatch, inputs, items, metrics, sequences  # noqa: F401
from foldloom.runtime.program.blocks import BlockProgram
from foldloom.runtime.program.registry import Interpreting, interpreter

__all__ = ["BlockProgram", "Interpreting", "interpreter"]
