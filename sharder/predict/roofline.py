"""How long one instruction of a compiled program takes on a device that is not here: a roofline.

    time = max(arithmetic, bytes / (memory rate x 0.8)) + launch gap

Arithmetic is the slower of two units that work side by side. The matrix unit: a product is cut into tiles, every core
takes one tile at a time, so the last round (wave) costs as much as a full one, and so does a tile that sticks out of
the result. The vector unit: an operation an element, special functions dearer. Bytes are those that are touched: see
measure/costs.py. What runs as no kernel (names for buffers, constants) takes nothing.

    cuBLAS call         a product of its shape. Its algorithm is chosen on the device, so none in the program is read
    fusion              all that is fused in it, Triton's as well: reads its operands once and writes its results once
    cuDNN attention     two products forward and five backward, at ATTENTION_SHARE of the rate of a plain product;
                        its scores never travel
    any other call      its bytes alone, and it is listed as not known; so is an opcode with arithmetic nobody knows
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sharder.config import HardwareConfig
from sharder.errors import UserError
from sharder.measure.arithmetic import Cost
from sharder.measure.costs import GPU, WITHOUT_BYTES, Costs, results
from sharder.measure.hlo import Computation, Instruction, Module
from sharder.measure.peaks import known_peak
from sharder.predict.matrix_products import (
    CUBLAS,
    CUDNN_ATTENTION,
    Product,
    attention_products,
    call_target,
    operand_shapes,
    product_of,
)
from sharder.predict.target import GPUS

# Assumed, not fitted.
MEMORY_SHARE = 0.8  # of the data sheet's rate: about what a streaming kernel reaches
# Of cuDNN's attention on H100s at 1024 tokens: 391 TFLOP/s forward with heads of 256, 408 backward with heads of 128
# (figures of Shah et al. 2024, arXiv 2407.08608), 0.40 and 0.41 of the peak where a plain product reaches 0.65.
ATTENTION_SHARE = 0.6
GPU_LAUNCH_GAP_S = 1e-6  # of each kernel: kKernelLaunchOverhead in XLA's own gpu_performance_model_base.h
TPU_LAUNCH_GAP_S = 0.0  # its core runs one program from beginning to end

GPU_TILE = (128, 128)  # of a product's result, for one core
TPU_TILE = (128, 128)  # rows and columns of the matrix unit
TPU_VECTOR_SHARE = 1 / 16  # of the matrix peak: 4 slots for 8 x 128 elements beside 4 matrix units of 128 x 128

NO_KERNELS = {*WITHOUT_BYTES, "async-update", "async-done", "copy-done"}
NO_WORK = {  # custom calls of TPUs that name or mark buffers
    *("AllocateBuffer", "AssumeGatherIndicesInBound", "AsyncCollectiveStart", "AsyncCollectiveDone", "ConcatBitcast"),
}
NO_MODEL = {"infeed", "outfeed", "send", "send-done", "recv", "recv-done", "fft", "cholesky", "triangular-solve"}


@dataclass(frozen=True)
class Device:
    """The numbers that a kernel's time depends on."""

    kind: str
    peak_flops_per_s: dict[str, float]  # dense, of the matrix unit, by dtype
    vector_flops_per_s: float  # a multiplication and an addition an element count as two
    bytes_per_s: float  # of its memory
    cores: int  # that take a tile of a product each
    tile: tuple[int, int]
    launch_gap_s: float


@dataclass(frozen=True)
class Kernel:
    """One launch. `unknown`: what the model does not know of it, empty where it knows."""

    kind: str  # product, attention, fusion, copy, ... or an opcode
    arithmetic_s: float
    memory_s: float
    gap_s: float
    flops: int = 0  # of its matrix products
    unknown: str = ""
    moved_bytes: float = 0.0  # to and from memory

    @property
    def busy_s(self) -> float:
        return max(self.arithmetic_s, self.memory_s)

    @property
    def total_s(self) -> float:
        return self.busy_s + self.gap_s

    @property
    def bound_by(self) -> str:
        if self.gap_s > self.busy_s:
            return "launch"
        return "arithmetic" if self.arithmetic_s > self.memory_s else "memory"


def device(hardware: HardwareConfig) -> Device:
    """UserError for hardware whose numbers are not in conf/hardware."""
    kind, rate, name = hardware.kind, hardware.hbm_bytes_per_s, hardware.device_kind
    if rate is None or name is None:
        raise UserError(
            f"hardware: found {kind}, allowed: {', '.join(GPUS)}, tpu_v5e, whose rates are known; a step's time is "
            "predicted for one of these; set hardware=h100"
        )
    found = {dtype: known_peak(name, dtype) for dtype in ("bfloat16", "float32")}
    peaks = {dtype: peak.flops_per_s for dtype, peak in found.items() if peak is not None}
    if "bfloat16" not in peaks:
        raise UserError(
            f"hardware.device_kind: found {name!r}, allowed: a device of sharder/measure/peaks.py; its peak is needed "
            f"to predict a step's time; leave hardware.device_kind as hardware={kind} has it"
        )
    if kind in GPUS:
        gpu = GPUS[kind]
        vector = 2 * gpu.core_count * gpu.fpus_per_core * gpu.clock_rate_ghz * 1e9
        return Device(kind, peaks, vector, rate, gpu.core_count, GPU_TILE, GPU_LAUNCH_GAP_S)
    return Device(kind, peaks, peaks["bfloat16"] * TPU_VECTOR_SHARE, rate, 1, TPU_TILE, TPU_LAUNCH_GAP_S)


def product_s(product: Product, device: Device, efficiency: float) -> float:
    """Arithmetic alone. `efficiency`: what a product that fills every tile and wave reaches of the peak."""
    if not product.flops:
        return 0.0
    rows, columns = device.tile
    tiles = product.batch * math.ceil(product.m / rows) * math.ceil(product.n / columns)
    waves = math.ceil(tiles / device.cores)
    flops = waves * device.cores * 2 * rows * columns * product.k
    if product.is_exact:
        return flops / device.vector_flops_per_s
    return flops / (_peak(product.dtype, device) * efficiency)


def _peak(dtype: str, device: Device) -> float:
    is_wide = dtype in ("f32", "f64", "c64", "c128")
    return device.peak_flops_per_s.get("float32" if is_wide else "bfloat16", device.peak_flops_per_s["bfloat16"])


def vector_s(cost: Cost, device: Device) -> float:
    """Of operations on single elements: each takes the place of a multiplication and addition."""
    operations = cost.operations + GPU.transcendental * cost.transcendentals
    return 2 * operations / device.vector_flops_per_s


def memory_s(moved_bytes: float, device: Device) -> float:
    return moved_bytes / (device.bytes_per_s * MEMORY_SHARE)


class Roofline:
    """Of one program on one device; what was asked for is remembered."""

    def __init__(self, module: Module, device: Device, efficiency: float):
        self.module, self.device, self.efficiency = module, device, efficiency
        self.costs = Costs(module)
        self._kernels: dict[str, Kernel | None] = {}

    def kernel(self, instruction: Instruction) -> Kernel | None:
        """None: it takes no time. Not for loops, calls, conditionals and collectives: see schedule.py."""
        name = instruction.name
        if name not in self._kernels:
            self._kernels[name] = self._find(instruction, self.module.home[name])
        return self._kernels[name]

    def _find(self, instruction: Instruction, home: Computation) -> Kernel | None:
        if instruction.opcode in NO_KERNELS or call_target(instruction) in NO_WORK:
            return None
        if instruction.opcode == "custom-call":
            return self._custom_call(instruction, home)
        cost = self.costs.of(instruction.name)
        inside = list(self._inside(instruction, home))
        products = [found for inner, where in inside if (found := product_of(inner, where)) is not None]
        matrix = sum(product_s(product, self.device, self.efficiency) for product in products)
        unknown = sorted({_strange(inner) for inner, _ in inside} - {""})
        if not cost.is_known and not unknown:
            unknown = [instruction.opcode]
        kind = "product" if products else instruction.opcode
        arithmetic = max(matrix, vector_s(cost, self.device))
        return self._kernel(kind, arithmetic, cost.bytes, products, ", ".join(unknown))

    def _inside(self, instruction: Instruction, home: Computation) -> Iterable[tuple[Instruction, Computation]]:
        """The instruction itself; of a fusion, and of one in it, what is fused."""
        if instruction.opcode != "fusion":
            yield instruction, home
            return
        for name in instruction.called["calls"]:
            inside = self.module.computations[name]
            for inner in inside.instructions:
                yield from self._inside(inner, inside)

    def _custom_call(self, instruction: Instruction, home: Computation) -> Kernel:
        operands = operand_shapes(instruction, home)
        moved = sum(shape.bytes for shape in (*operands, *results(instruction)))
        target = call_target(instruction)
        if CUDNN_ATTENTION.match(target):
            products, rate = attention_products(operands, "Backward" in target), self.efficiency * ATTENTION_SHARE
            arithmetic = sum(product_s(product, self.device, rate) for product in products)
            return self._kernel("attention", arithmetic, moved, products, "" if products else _strange(instruction))
        product = product_of(instruction, home)
        if product is None:
            return self._kernel("custom-call", 0.0, moved, [], f"custom-call {target}")
        return self._kernel("product", product_s(product, self.device, self.efficiency), moved, [product])

    def _kernel(
        self, kind: str, arithmetic: float, moved_bytes: float, products: Sequence[Product], unknown: str = ""
    ) -> Kernel:
        memory, flops = memory_s(moved_bytes, self.device), sum(product.flops for product in products)
        return Kernel(kind, arithmetic, memory, self.device.launch_gap_s, flops, unknown, moved_bytes)


def _strange(instruction: Instruction) -> str:
    """What it is, if the model has nothing to say of it; else nothing."""
    target = call_target(instruction)
    if instruction.opcode == "custom-call" and target not in NO_WORK and not CUBLAS.match(target):
        return f"custom-call {target}"
    return instruction.opcode if instruction.opcode in NO_MODEL else ""
