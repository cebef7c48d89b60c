"""How much an instruction computes: FLOPs, from its opcode and shapes.

XLA's own counting rules (HloCostAnalysis), which the tests compare with, but for loops: here a body counts as often as
it runs. A product of matrices is a multiplication and an addition for every term. Everything else counts one operation
for every element of the result, whatever its dtype, and apart from these the transcendental ones, which take a device
many instructions. A reduction applies its computation once less than it has elements. Moving elements, copying and
changing their order, is no operation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from sharder.measure.hlo import Computation, Instruction, Module, Shape

ELEMENTWISE = {
    "abs", "add", "and", "ceil", "clamp", "compare", "complex", "convert", "count-leading-zeros", "divide",
    "floor", "imag", "is-finite", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "real",
    "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "select", "shift-left",
    "shift-right-arithmetic", "shift-right-logical", "sign", "stochastic-convert", "subtract", "xor",
}  # fmt: skip
TRANSCENDENTAL = {
    "acos", "acosh", "asin", "asinh", "atan2", "atanh", "cbrt", "cosh", "cosine", "erf", "exponential",
    "exponential-minus-one", "log", "log-plus-one", "logistic", "power", "rsqrt", "sine", "sinh", "sqrt", "tan",
    "tanh",
}  # fmt: skip
MOVING = {  # and every start and done
    "add-dependency", "after-all", "all-gather", "all-reduce", "all-to-all", "async-update", "bitcast",
    "bitcast-convert", "broadcast", "collective-broadcast", "collective-permute", "concatenate", "constant",
    "copy", "domain", "dynamic-reshape", "dynamic-slice", "dynamic-update-slice", "gather", "get-dimension-size",
    "get-tuple-element", "infeed", "iota", "opt-barrier", "outfeed", "pad", "parameter", "partition-id",
    "ragged-all-to-all", "recv", "reduce-scatter", "replica-id", "reshape", "reverse", "send",
    "set-dimension-size", "slice", "transpose", "tuple",
}  # fmt: skip
WINDOW_SIZE = re.compile(r"size=([\dx]+)")
GEMM_CONTRACTION = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')  # of a call into cuBLAS


@dataclass(frozen=True)
class Cost:
    """Of one execution, or of several added up."""

    product_flops: int = 0  # in matrix products and convolutions
    operations: int = 0  # on single elements, the transcendental ones apart
    transcendentals: int = 0
    bytes: int = 0  # read from memory and written to it: see costs.py
    is_known: bool = True  # False: it holds an instruction whose arithmetic nobody knows, counted as none

    @property
    def flops(self) -> int:
        return self.product_flops + self.operations + self.transcendentals

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.product_flops + other.product_flops,
            self.operations + other.operations,
            self.transcendentals + other.transcendentals,
            self.bytes + other.bytes,
            self.is_known and other.is_known,
        )

    def times(self, count: int) -> Cost:
        return Cost(
            count * self.product_flops,
            count * self.operations,
            count * self.transcendentals,
            count * self.bytes,
            self.is_known,
        )


NOTHING, UNKNOWN = Cost(), Cost(is_known=False)


def total(costs: Iterable[Cost]) -> Cost:
    return sum(costs, NOTHING)


def arithmetic(instruction: Instruction, home: Computation, module: Module) -> Cost:
    """Without bytes. `home` is the computation that the instruction stands in.

    Of what runs a sequence of instructions (a fusion, a loop), nothing: its instructions are counted. Positions of a
    window in the padding count like others.
    """
    opcode = instruction.opcode
    if opcode in ELEMENTWISE:
        return Cost(operations=_elements(instruction))
    if opcode in TRANSCENDENTAL:
        return Cost(transcendentals=_elements(instruction))
    if opcode in MOVING or opcode.endswith(("-start", "-done")) or instruction.sequences:
        return NOTHING
    count = {
        "convolution": _convolution,
        "custom-call": _custom_call,
        "dot": _dot,
        "ragged-dot": _dot,
    }.get(opcode)
    if count is not None:
        return count(instruction, _operands(instruction, home))
    times = _applications(instruction, _operands(instruction, home))
    if times is None:
        return UNKNOWN
    return _applied(instruction, module).times(times)


def _dot(instruction: Instruction, operands: list[Shape]) -> Cost:
    contracted = re.findall(r"\d+", instruction.attributes.get("lhs_contracting_dims", ""))
    return _products(instruction.shapes[0], operands[0], contracted)


def _custom_call(instruction: Instruction, operands: list[Shape]) -> Cost:
    """A product by cuBLAS is known; what others do is not."""
    found = GEMM_CONTRACTION.search(instruction.attributes.get("backend_config", ""))
    if found is None:
        return UNKNOWN
    return _products(instruction.shapes[0], operands[0], re.findall(r"\d+", found[1]))


def _products(result: Shape, left: Shape, contracted: Iterable[str]) -> Cost:
    return Cost(product_flops=2 * result.elements * math.prod(left.dims[int(dim)] for dim in contracted))


def _convolution(instruction: Instruction, operands: list[Shape]) -> Cost:
    """dim_labels b01f_01io->b01f: every output takes the kernel's elements for one of its output features."""
    kernel_labels = instruction.attributes["dim_labels"].split("_")[1].split("->")[0]
    kernel = operands[1]
    terms = kernel.elements // kernel.dims[kernel_labels.index("o")]
    return Cost(product_flops=2 * instruction.shapes[0].elements * terms)


def _applications(instruction: Instruction, operands: list[Shape]) -> int | None:
    """How often it runs what it applies; None for an opcode that is not known."""
    elements = _elements(instruction)
    match instruction.opcode:
        case "reduce":
            return operands[0].elements - instruction.shapes[0].elements
        case "reduce-window":
            return elements * (_window(instruction) - 1)
        case "map":
            return elements
        case "scatter":
            arrays = len(instruction.shapes)
            return operands[arrays + 1].elements
        case "select-and-scatter":
            return operands[1].elements * _window(instruction)
        case "sort":
            return operands[0].elements * max(1, math.ceil(math.log2(max(2, _sorted_length(instruction, operands)))))
        case "reduce-scatter":
            return operands[0].elements
    return None


def _sorted_length(instruction: Instruction, operands: list[Shape]) -> int:
    return operands[0].dims[instruction.dimensions[0]]


def _window(instruction: Instruction) -> int:
    found = WINDOW_SIZE.search(instruction.attributes.get("window", ""))
    return math.prod(int(size) for size in found[1].split("x")) if found else 1


def _applied(instruction: Instruction, module: Module) -> Cost:
    """One run of what it applies to elements. A comparator of a sort is one comparison."""
    if instruction.opcode == "sort":
        return Cost(operations=1)
    names = [name for found in instruction.called.values() for name in found]
    return total(
        arithmetic(inner, module.computations[name], module)
        for name in names
        for inner in module.computations[name].instructions
    )


def _elements(instruction: Instruction) -> int:
    return instruction.shapes[0].elements if instruction.shapes else 0


def _operands(instruction: Instruction, home: Computation) -> list[Shape]:
    """The array of each operand, the first where it is a tuple."""
    return [home.by_name[name].shapes[0] for name in instruction.operands if home.by_name[name].shapes]
