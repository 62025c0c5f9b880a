"""What readers give: plain values of strings and numbers, that know nothing of files or of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Node = TypeVar("Node", "Tree", "Expression", "SyntaxTree")


def _children_first(root: Node) -> Iterator[Node]:
    """Without recursion: trees may be deeper than Python's stack."""
    pending, backwards = [root], []
    while pending:
        node = pending.pop()
        backwards.append(node)
        pending += node.children
    return reversed(backwards)


def _shown(root: Node, show: Callable[[Node, list[str]], str]) -> str:
    """From what stands below a node, what the node is; without recursion, too."""
    texts: list[str] = []
    for node in _children_first(root):
        count = len(node.children)
        below = texts[len(texts) - count :]
        del texts[len(texts) - count :]
        texts.append(show(node, below))
    return texts[0]


@dataclass(frozen=True, slots=True)
class Tree:
    """A phrase with a label: a word, or phrases in order.

    >>> from foldloom import data
    >>> tree = data.Tree("4", children=(data.Tree("2", "so"), data.Tree("4", "good")))
    >>> print(tree)
    (4 (2 so) (4 good))
    >>> tree.words, [phrase.label for phrase in tree]
    (['so', 'good'], ['2', '4', '4'])
    """

    label: str
    word: str | None = None
    children: tuple[Tree, ...] = ()

    def __iter__(self) -> Iterator[Tree]:
        """All phrases in it, children before parents, itself last."""
        return _children_first(self)

    @property
    def words(self) -> list[str]:
        return [node.word for node in self if node.word is not None]

    def __str__(self) -> str:
        return _shown(
            self, lambda node, below: f"({node.label} {node.word if node.word is not None else ' '.join(below)})"
        )


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """Words, and a tag for each.

    >>> from foldloom import data
    >>> sentence = data.TaggedSentence(("It", "works"), ("PRON", "VERB"))
    >>> len(sentence), sentence.tags
    (2, ('PRON', 'VERB'))
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True, slots=True)
class ParsedSentence(TaggedSentence):
    """Tagged words with the position of each word's head, -1 for the root's, and its relation to it.

    >>> from foldloom import data
    >>> sentence = data.ParsedSentence(("It", "works"), ("PRON", "VERB"), (1, -1), ("nsubj", "root"))
    >>> [sentence.words[head] for head in sentence.heads if head >= 0]
    ['works']
    """

    heads: tuple[int, ...]
    relations: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Molecule:
    """Atoms without hydrogens, and what is known of each and of any two of them.

    >>> from foldloom import data
    >>> water, ethanol = data.MoleculeReader(["O", "CCO"])
    >>> ethanol.smiles, len(ethanol.atoms), ethanol.distances[0].tolist()
    ('CCO', 3, [0, 1, 2])
    """

    smiles: str
    atoms: npt.NDArray[np.float32]
    """[atoms, features]"""
    pairs: npt.NDArray[np.float32]
    """[atoms, atoms, features], the same for both orders of two atoms."""
    distances: npt.NDArray[np.int64]
    """[atoms, atoms]: how many bonds lie between two atoms; more than there are atoms where none lead from one to the other."""
    targets: Mapping[str, float] = field(default_factory=dict)
    """What was measured; what was not is left out."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A whole number, or an operator over two expressions; with its value.

    >>> from foldloom import data
    >>> expression = next(iter(data.ArithmeticReader(["( + ( 2 3 ) )"])))
    >>> expression.value, expression.operator, len(expression.children)
    (5, '+', 2)
    """

    value: int
    operator: str | None = None
    children: tuple[Expression, ...] = ()

    def __iter__(self) -> Iterator[Expression]:
        """All parts, children before parents, itself last."""
        return _children_first(self)

    @property
    def sign(self) -> int:
        return (self.value > 0) - (self.value < 0)

    def __str__(self) -> str:
        """As the arithmetic files write it."""
        return _shown(
            self, lambda e, below: str(e.value) if e.operator is None else f"( {e.operator} ( {' '.join(below)} ) )"
        )


@dataclass(slots=True)  # not frozen: there are millions, and freezing triples the time to make them
class SyntaxTree:
    """A node of a Python program: its kind (``BinOp``), its role in the node above it (``left``), and the nodes below.

    >>> from foldloom import data
    >>> name = data.SyntaxTree("Name", "left", "price")
    >>> [node.kind for node in data.SyntaxTree("BinOp", children=(name, data.SyntaxTree("Mult", "op")))]
    ['Name', 'Mult', 'BinOp']
    """

    kind: str
    role: str = ""
    text: str | None = None
    """The name, or the constant as it is written in Python; None for all other nodes."""
    line: int = 0
    """Where it begins; 0 for nodes that stand nowhere themselves, such as operators."""
    children: tuple[SyntaxTree, ...] = ()

    def __iter__(self) -> Iterator[SyntaxTree]:
        """All nodes, children before parents, itself last."""
        return _children_first(self)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A Python program.

    >>> from foldloom import data
    >>> file = next(iter(data.PythonReader(["def double(x):", "    return 2 * x"])))
    >>> [function.text for function in file.functions()]
    ['double']
    """

    name: str
    tree: SyntaxTree

    def functions(self) -> Iterator[SyntaxTree]:
        """All functions, inner ones before outer ones."""
        return (node for node in self.tree if node.kind in ("FunctionDef", "AsyncFunctionDef"))


@dataclass(frozen=True, slots=True)
class SourceExpression:
    """An expression as it is written in a Python program.

    >>> from foldloom import data
    >>> [[found]] = data.ExpressionReader(["total = price * 2"])
    >>> found.line, found.text, found.tree.kind
    (1, 'price * 2', 'BinOp')
    """

    name: str
    """Of the file."""
    line: int
    text: str
    tree: SyntaxTree
