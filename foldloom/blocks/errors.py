"""What blocks raise on their own account.

FoldloomError
└── BlockError            a block that cannot be what it was made to be
    ├── BlockTypeError    two blocks that do not fit: one gives what the other does not take
    ├── WiringError       a composition, declaration or dispatch that is not complete
    └── BlockInputError   an example that is not what the blocks expect
        └── MissingKeyError   it lacks a field, or has a key that no case is for
"""

from __future__ import annotations

from foldloom.errors import FoldloomError


class BlockError(FoldloomError):
    pass


class BlockTypeError(BlockError, TypeError):
    pass


class WiringError(BlockError, ValueError):
    pass


class BlockInputError(BlockError, ValueError):
    pass


class MissingKeyError(BlockInputError, KeyError):
    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would print it quoted, on one line
