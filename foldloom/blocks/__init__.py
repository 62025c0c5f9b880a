"""Blocks: small typed functions from Python objects to tensors, and combinators that build models from them."""

from foldloom.blocks.block import Block, Identity, Pipe, convert_to_block
from foldloom.blocks.combinators.composition import AllOf, Composition, Record
from foldloom.blocks.combinators.computing import Concat, FromTensor, Function, Stack, Zeros
from foldloom.blocks.combinators.dispatch import ForwardDeclaration, OneOf, Optional
from foldloom.blocks.combinators.inputs import InputTransform, OneHot, OneHotFromList, Scalar, Tensor, Vector
from foldloom.blocks.combinators.items import GetItem, Length, Nth, Slice
from foldloom.blocks.combinators.messages import SerializedMessageToTree
from foldloom.blocks.combinators.metrics import Metric, Void
from foldloom.blocks.combinators.on_the_fly import OnTheFly
from foldloom.blocks.combinators.reductions import RNN, Max, Mean, Min, Reduce, Sum
from foldloom.blocks.combinators.sequences import Broadcast, Fold, Map, NGrams, Zip, ZipWith
from foldloom.blocks.compiler.compiling import compile  # noqa: A004 - always used as fb.compile
from foldloom.blocks.compiler.model import Model
from foldloom.blocks.compiler.program import MetricRows
from foldloom.blocks.layers import FC, Embedding, FractalNet
from foldloom.blocks.types import (
    BroadcastSequenceType,
    PyObjectType,
    SequenceType,
    TensorType,
    TupleType,
    VoidType,
    canonicalize_type,
    convert_to_type,
)
from foldloom.errors import BlockError, BlockInputError, BlockTypeError, MissingKeyError, WiringError

__all__ = [
    "FC",
    "RNN",
    "AllOf",
    "Block",
    "BlockError",
    "BlockInputError",
    "BlockTypeError",
    "Broadcast",
    "BroadcastSequenceType",
    "Composition",
    "Concat",
    "Embedding",
    "Fold",
    "ForwardDeclaration",
    "FractalNet",
    "FromTensor",
    "Function",
    "GetItem",
    "Identity",
    "InputTransform",
    "Length",
    "Map",
    "Max",
    "Mean",
    "Metric",
    "MetricRows",
    "Min",
    "MissingKeyError",
    "Model",
    "NGrams",
    "Nth",
    "OnTheFly",
    "OneHot",
    "OneHotFromList",
    "OneOf",
    "Optional",
    "Pipe",
    "PyObjectType",
    "Record",
    "Reduce",
    "Scalar",
    "SequenceType",
    "SerializedMessageToTree",
    "Slice",
    "Stack",
    "Sum",
    "Tensor",
    "TensorType",
    "TupleType",
    "Vector",
    "Void",
    "VoidType",
    "WiringError",
    "Zeros",
    "Zip",
    "ZipWith",
    "canonicalize_type",
    "compile",
    "convert_to_block",
    "convert_to_type",
]
