"""Readers of the files that models of the literature are trained on, and the plain values that they give.

Nothing here imports torch. ``conllu`` and ``rdkit`` are imported when a file is read that needs them.
"""

from foldloom.data.arithmetic import ArithmeticReader
from foldloom.data.dependencies import ConlluReader
from foldloom.data.molecules import MoleculeReader
from foldloom.data.opening import Limits
from foldloom.data.python_source import ExpressionReader, PythonReader
from foldloom.data.reading import Reader
from foldloom.data.records import JsonReader
from foldloom.data.structures import (
    Expression,
    Molecule,
    ParsedSentence,
    SourceExpression,
    SourceFile,
    SyntaxTree,
    TaggedSentence,
    Tree,
)
from foldloom.data.tagged import TaggedReader
from foldloom.data.trees import SentimentReader, TreeReader
from foldloom.data.vectors import WordVectors
from foldloom.data.vocabulary import Vocabulary
from foldloom.errors import DataError

__all__ = [
    "ArithmeticReader",
    "ConlluReader",
    "DataError",
    "Expression",
    "ExpressionReader",
    "JsonReader",
    "Limits",
    "Molecule",
    "MoleculeReader",
    "ParsedSentence",
    "PythonReader",
    "Reader",
    "SentimentReader",
    "SourceExpression",
    "SourceFile",
    "SyntaxTree",
    "TaggedReader",
    "TaggedSentence",
    "Tree",
    "TreeReader",
    "Vocabulary",
    "WordVectors",
]
