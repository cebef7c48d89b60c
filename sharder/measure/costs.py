"""FLOPs and bytes of every instruction of a compiled program, and how those of a fusion fall to the instructions in it.

    fused computation   p0 f32[18,64,64]   p1 f32[64]     reads from memory          writes
      slice    = dynamic-slice(p0, i)                     its own 64 x 64 of p0
      scaled   = multiply(slice, broadcast(p1))           p1 (its broadcast does)
      ROOT out = add(scaled, scaled)                                                 64 x 64

What a fusion reads and writes is counted once, for the instruction in it that first touches it, and only the part that
is touched: loops over stacked layers live on slices and updates in place. What passes between two instructions of a
fusion stays on the chip. A value that several of them read is divided among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sharder.measure.arithmetic import Cost, arithmetic, total
from sharder.measure.hlo import Computation, Instruction, Module, Shape

# Another name for a buffer, or nothing to move.
WITHOUT_BYTES = {
    "add-dependency",
    "after-all",
    "bitcast",
    "constant",
    "domain",
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
}
SAME_BUFFER = {"bitcast", "get-tuple-element", "reshape"}
TAKES_A_PART = {"dynamic-slice", "gather", "slice"}
UPDATES_A_PART = {"dynamic-update-slice": 1, "scatter": 2}  # opcode to the operand that is written there


@dataclass(frozen=True)
class Prices:
    """What a device takes for each, in units of one operation on an element. Only their ratios matter, and these only
    where one fusion mixes instructions of several scopes.
    """

    product_flop: float
    transcendental: float
    byte: float

    def of(self, cost: Cost) -> float:
        return (
            self.product_flop * cost.product_flops
            + cost.operations
            + self.transcendental * cost.transcendentals
            + self.byte * cost.bytes
        )


# An H100 SXM: 33e12 operations/s on float32 elements (half its FLOP/s, for those count a multiply-add as two), matrix
# products at 0.68 of 989e12 FLOP/s, memory at 0.8 of 3.35e12 bytes/s; special functions come out of a unit with an
# eighth of the lanes, and take some operations before and after.
GPU = Prices(product_flop=0.05, transcendental=16, byte=12)
# A core with vectors of 8: 48e9 operations/s at 3 GHz, products at 0.8 of 96e9 FLOP/s, 16e9 bytes/s; a special function
# is a polynomial of some 20 operations.
CPU = Prices(product_flop=0.6, transcendental=20, byte=3)


class Costs:
    """Of one module; what was asked for is remembered."""

    def __init__(self, module: Module):
        self.module = module
        self._parts: dict[str, tuple[tuple[Instruction, Cost], ...]] = {}

    def of(self, name: str) -> Cost:
        """One execution of the instruction of this name; of a loop, all turns, as many as XLA knows."""
        return total(cost for _, cost in self.parts(name))

    def of_all(self, computation: Computation) -> Cost:
        """One run of a computation: of the entry, a step."""
        return total(self.of(instruction.name) for instruction in computation.instructions)

    def parts(self, name: str) -> tuple[tuple[Instruction, Cost], ...]:
        """The instructions that run when this one does, down to those that run no others."""
        if name not in self._parts:
            self._parts[name] = tuple(self._find_parts(name))
        return self._parts[name]

    def _find_parts(self, name: str) -> Iterable[tuple[Instruction, Cost]]:
        home = self.module.home[name]
        instruction = home.by_name[name]
        if instruction.opcode == "fusion":
            (inside,) = instruction.sequences["calls"]
            return self._fused(self.module.computations[inside])
        if instruction.sequences and instruction.opcode != "async-start":
            return self._sequence(instruction)
        return [(instruction, replace(arithmetic(instruction, home, self.module), bytes=_bytes(instruction, home)))]

    def _sequence(self, instruction: Instruction) -> Iterable[tuple[Instruction, Cost]]:
        """Of a call, a loop, or a conditional: there, the dearest branch, for one of them runs."""
        names = [name for found in instruction.sequences.values() for name in found]
        bodies = [self._body(self.module.computations[name]) for name in names]
        if instruction.opcode == "conditional":
            bodies = [max(bodies, key=lambda body: CPU.of(total(cost for _, cost in body)))]
        turns = instruction.trip_count or 1 if instruction.opcode == "while" else 1
        return [(inner, cost.times(turns)) for body in bodies for inner, cost in body]

    def _body(self, computation: Computation) -> list[tuple[Instruction, Cost]]:
        return [part for inner in computation.instructions for part in self.parts(inner.name)]

    def _fused(self, inside: Computation) -> Iterable[tuple[Instruction, Cost]]:
        moved = _fused_bytes(inside)
        for inner in inside.instructions:
            if inner.opcode != "fusion":
                cost = arithmetic(inner, inside, self.module)
                yield inner, replace(cost, bytes=moved.get(inner.name, 0))
                continue
            # A fusion in a fusion: what the outer one reads and writes through it falls to its root.
            (name,) = inner.sequences["calls"]
            for innermost, cost in self._fused(self.module.computations[name]):
                yield innermost, replace(cost, bytes=moved.get(inner.name, 0) if innermost.is_root else 0)


def _bytes(instruction: Instruction, home: Computation) -> int:
    """Read and written by an instruction that stands alone."""
    if instruction.opcode in WITHOUT_BYTES or instruction.opcode.endswith(("-done", "async-update")):
        return 0
    if instruction.opcode.endswith("-start") and instruction.result.startswith("("):
        return _size(instruction.shapes)  # the operands are repeated there, before the results
    operands = dict.fromkeys(instruction.operands)
    return _written(instruction, home) + sum(_read(instruction, name, home) for name in operands)


def _fused_bytes(inside: Computation) -> dict[str, int]:
    """Instruction of a fused computation to what it reads from the fusion's operands and writes of its results."""
    moved: dict[str, int] = {}
    for parameter in inside.instructions:
        if parameter.opcode != "parameter":
            continue
        touched = {
            reader.name: sum(_read(reader, name, inside) for name in dict.fromkeys(reader.operands) if name in aliases)
            for aliases, reader in _readers(parameter, inside)
        }
        whole, all_touched = _size(parameter.shapes), sum(touched.values())
        for reader, count in touched.items():
            share = count if all_touched <= whole else round(whole * count / all_touched)
            moved[reader] = moved.get(reader, 0) + share
    for writer in _writers(inside):
        moved[writer.name] = moved.get(writer.name, 0) + _written(writer, inside)
    return moved


def _readers(parameter: Instruction, inside: Computation) -> list[tuple[set[str], Instruction]]:
    """Who reads it, under any of its names."""
    aliases, readers = {parameter.name}, []
    for instruction in inside.instructions:
        if aliases.isdisjoint(instruction.operands):
            continue
        if instruction.opcode in SAME_BUFFER and not instruction.is_root:
            aliases.add(instruction.name)
        elif instruction.opcode != "tuple":
            readers.append((aliases, instruction))
    return readers


def _writers(inside: Computation) -> list[Instruction]:
    """Whose results leave the fusion."""
    root = inside.root
    names = root.operands if root.opcode == "tuple" else (root.name,)
    return [_behind(inside.by_name[name], inside) for name in dict.fromkeys(names)]


def _behind(instruction: Instruction, home: Computation) -> Instruction:
    """The instruction that filled the buffer which this is another name for."""
    while instruction.opcode in SAME_BUFFER and home.by_name[instruction.operands[0]].opcode != "parameter":
        instruction = home.by_name[instruction.operands[0]]
    return instruction


def _read(reader: Instruction, name: str, home: Computation) -> int:
    """Bytes of the operand `name` that `reader` needs."""
    whole = _size(home.by_name[name].shapes)
    position = reader.operands.index(name)
    if position == 0 and reader.opcode in TAKES_A_PART:
        return min(whole, _size(reader.shapes))
    if position == 0 and reader.opcode in UPDATES_A_PART:
        is_added = reader.opcode == "scatter"
        return min(whole, _written(reader, home)) if is_added else 0
    return whole


def _written(writer: Instruction, home: Computation) -> int:
    if writer.opcode in UPDATES_A_PART:
        update = home.by_name[writer.operands[UPDATES_A_PART[writer.opcode]]]
        return _size(update.shapes)
    return _size(results(writer))


def results(writer: Instruction) -> Sequence[Shape]:
    """What it writes: without the bytes that a call is given to work in, a vector that comes last."""
    shapes = writer.shapes
    has_workspace = writer.opcode == "custom-call" and len(shapes) > 1 and is_workspace(shapes[-1])
    return shapes[:-1] if has_workspace else shapes


def is_workspace(shape: Shape) -> bool:
    """Of a result of a call: is it what the call works in?"""
    return shape.dtype in ("s8", "u8") and len(shape.dims) == 1


def _size(shapes: Iterable[Shape]) -> int:
    return sum(shape.bytes for shape in shapes)
