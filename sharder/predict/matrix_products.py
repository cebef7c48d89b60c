"""The matrix products of a compiled program by their shapes, in whatever way it writes them.

dot              dims in attributes of its own; alone on a CPU, within Triton's fusions on a GPU
custom-call      into cuBLAS: dims in its backend_config. Into cuDNN's attention: several products, see there
convolution      how a TPU writes a product, and what it is on any device
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sharder.measure.hlo import Computation, Instruction, Shape

CUBLAS = re.compile(r"__cublas\$")
CUDNN_ATTENTION = re.compile(r"__cudnn\$fmha")
SIDES = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
PRECISION = re.compile(r'"operand_precision":\[([^\]]*)\]')


@dataclass(frozen=True)
class Product:
    """batch x [m, k] x [k, n]."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str  # of its operands, as HLO has it
    is_exact: bool = False  # float32 operands that must not be rounded, as a matrix unit does

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


def product_of(instruction: Instruction, home: Computation) -> Product | None:
    """None of what is no product, or several: of a fusion, of attention."""
    attributes = instruction.attributes
    if instruction.opcode in ("dot", "ragged-dot"):
        dims = {side: _numbers(attributes.get(f"{side}_dims", "")) for side in SIDES}
        return _product(instruction, home, dims, attributes.get("operand_precision", ""))
    if instruction.opcode == "convolution":
        return _convolution(instruction, home)
    if CUBLAS.match(call_target(instruction)):
        config = attributes.get("backend_config", "")
        found = {side: re.search(rf'"{side}_dimensions":\[([^\]]*)\]', config) for side in SIDES}
        dims = {side: _numbers(match[1]) for side, match in found.items() if match is not None}
        if "lhs_contracting" in dims:
            precision = PRECISION.search(config)
            return _product(instruction, home, dims, precision[1] if precision else "")
    return None


def call_target(instruction: Instruction) -> str:
    """What a custom-call calls; empty for everything else."""
    return instruction.attributes.get("custom_call_target", "").strip('"')


def attention_products(operands: Sequence[Shape], is_backward: bool) -> list[Product]:
    """Of cuDNN's attention, whose first operands are queries [B, T, N, H], keys and values [B, S, K, H].

    Forward scores and values weighed by them; backward the scores again, and for each of the two products the gradients
    of both its sides. Empty where the operands are not such.
    """
    if len(operands) < 3 or any(len(shape.dims) != 4 for shape in operands[:3]):
        return []
    (batch, queries, heads, width), (_, keys, _, _) = operands[0].dims, operands[1].dims
    scores = Product(batch * heads, queries, keys, width, operands[0].dtype)
    weighed = Product(batch * heads, queries, width, keys, operands[0].dtype)
    return [scores, scores, weighed, weighed, weighed] if is_backward else [scores, weighed]


def operand_shapes(instruction: Instruction, home: Computation) -> list[Shape]:
    """The array of each operand, the first where it is a tuple."""
    return [home.by_name[name].shapes[0] for name in instruction.operands if home.by_name[name].shapes]


def _product(instruction: Instruction, home: Computation, dims: dict[str, list[int]], precision: str) -> Product:
    left, right = operand_shapes(instruction, home)[:2]

    def free(shape: Shape, side: str) -> int:
        taken = {*dims.get(f"{side}_contracting", ()), *dims.get(f"{side}_batch", ())}
        return math.prod(size for dim, size in enumerate(shape.dims) if dim not in taken)

    return Product(
        batch=math.prod(left.dims[dim] for dim in dims.get("lhs_batch", ())),
        m=free(left, "lhs"),
        n=free(right, "rhs"),
        k=math.prod(left.dims[dim] for dim in dims["lhs_contracting"]),
        dtype=left.dtype,
        is_exact=left.dtype == "f32" and "high" in precision.lower(),
    )


def _convolution(instruction: Instruction, home: Computation) -> Product:
    """Rows are the places of the result, columns its features."""
    labels = instruction.attributes["dim_labels"].split("_")[1].split("->")[0]
    left, kernel = operand_shapes(instruction, home)[:2]
    features = kernel.dims[labels.index("o")]
    return Product(1, instruction.shapes[0].elements // features, features, kernel.elements // features, left.dtype)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
