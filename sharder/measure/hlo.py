"""A compiled program, read from the text XLA prints of it: `parse(compiled.as_text())`.

The text of a compiled program is scheduled (instructions stand in the order they run in) and partitioned (shapes are
those of one device). It is tens of megabytes for a large model, so a line is only cut into its five parts here and the
rest is looked at when asked for:

    ROOT %name = bf16[2048,16384]{1,0:T(8,128)} all-gather(%operand, %other), dimensions={0}, channel_id=1
                 ^ result                       ^ opcode   ^ arguments        ^ attributes
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from sharder.measure.replica_groups import replica_groups

FOUR_BITS = {"s4", "u4", "f4e2m1fn"}  # XLA keeps two of them in a byte
BYTES = {"token": 0, "opaque": 0, "pred": 1, "bf16": 2, "c64": 8, "c128": 16}  # the others have their bits in the name

CALLS = {  # the attributes that name computations
    "body",
    "branch_computations",
    "called_computations",
    "calls",
    "condition",
    "false_computation",
    "to_apply",
    "true_computation",
}
RUNS_A_SEQUENCE = ("fusion", "while", "call", "conditional", "async-start")

COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
OPCODE = re.compile(r" ([\w\-]+)\(")
ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")
NAME = re.compile(r"%([\w.\-]+)")
BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[()]')
ATTRIBUTE_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"|[(\[{]|[)\]}]|, (?=[\w\-]+=)')
MATMUL_TARGET = re.compile(r"gemm|matmul|conv|fmha", re.IGNORECASE)  # of custom calls into cuBLAS, cuDNN, oneDNN


@dataclass(frozen=True)
class Shape:
    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        if self.dtype in FOUR_BITS:
            return -(-self.elements // 2)
        if self.dtype in BYTES:
            return self.elements * BYTES[self.dtype]
        bits = re.match(r"[a-z]+(\d+)", self.dtype)
        if bits is None:
            raise ValueError(f"HLO: the size of dtype {self.dtype} is not known")
        return self.elements * max(1, int(bits[1]) // 8)


@dataclass(frozen=True)
class Loop:
    """A computation that a `while` runs, and how often in one go; None where XLA could not tell."""

    computation: str
    trip_count: int | None


def times_round(loops: tuple[Loop, ...]) -> int:
    """How often a step runs what is inside these loops; one whose length XLA does not know counts once."""
    return math.prod(loop.trip_count for loop in loops if loop.trip_count is not None)


@dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    result: str = field(repr=False)
    arguments: str = field(repr=False)
    attribute_text: str = field(repr=False)
    is_root: bool = False
    turns: int | None = None  # of a `while`, as counted from what it runs; see _turns

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The arrays of the result; those of a tuple, nested or not, in a row."""
        return tuple(
            Shape(dtype, tuple(int(size.strip("<= ")) for size in dims.split(",") if size))
            for dtype, dims in ARRAY.findall(self.result)
        )

    @cached_property
    def operands(self) -> tuple[str, ...]:
        return () if self.opcode in ("constant", "parameter") else tuple(NAME.findall(self.arguments))

    @cached_property
    def attributes(self) -> dict[str, str]:
        """Key to text, as printed."""
        return dict(part.split("=", 1) for part in _attribute_parts(self.attribute_text) if "=" in part)

    @cached_property
    def called(self) -> dict[str, tuple[str, ...]]:
        """Names of the computations it calls, by attribute."""
        return {key: tuple(NAME.findall(text)) for key, text in self.attributes.items() if key in CALLS}

    @property
    def sequences(self) -> dict[str, tuple[str, ...]]:
        """Names of those that it runs as a sequence of instructions, by attribute."""
        return self.called if self.opcode in RUNS_A_SEQUENCE else {}

    @cached_property
    def op_name(self) -> str:
        """The path of named scopes it came from, down to the jax primitive; empty for what XLA added."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes.get("metadata", ""))
        return found[1] if found else ""

    @property
    def dimensions(self) -> tuple[int, ...]:
        return tuple(int(dim) for dim in re.findall(r"\d+", self.attributes.get("dimensions", "")))

    @property
    def channel_id(self) -> int | None:
        return int(self.attributes["channel_id"]) if "channel_id" in self.attributes else None

    @property
    def trip_count(self) -> int | None:
        """Of a `while`: how often its body runs, where XLA says or it can be counted."""
        found = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', self.attributes.get("backend_config", ""))
        return int(found[1]) if found else self.turns

    @property
    def replica_groups(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each group; () when it names none, which means all devices in one group."""
        text = self.attributes.get("replica_groups", "{}")
        if "device_ids" in self.attributes:  # printed after a comma, but a part of the groups' mesh
            text += ", device_ids=" + self.attributes["device_ids"]
        return replica_groups(text)


@dataclass(frozen=True)
class Computation:
    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        return next(instruction for instruction in self.instructions if instruction.is_root)

    @cached_property
    def position(self) -> dict[str, int]:
        """In the schedule."""
        return {instruction.name: index for index, instruction in enumerate(self.instructions)}


@dataclass(frozen=True)
class Visit:
    """One way a computation is reached: from which instruction (None: the entry), in which loops, outermost first."""

    computation: Computation
    caller: Instruction | None
    loops: tuple[Loop, ...]

    @property
    def times(self) -> int:
        return times_round(self.loops)


@dataclass(frozen=True)
class Module:
    name: str
    device_count: int
    computations: dict[str, Computation]
    entry: Computation

    def visits(self) -> Iterator[Visit]:
        """Every computation that runs, once for each place it is called from; every branch of a conditional.

        What `to_apply` gives a reduction or a sort runs once an element, within the instruction: it is left out.
        """
        yield from self._visit(Visit(self.entry, None, ()))

    def _visit(self, visit: Visit) -> Iterator[Visit]:
        yield visit
        for instruction in visit.computation.instructions:
            for key, names in instruction.sequences.items():
                for name in names:
                    loops = visit.loops
                    if instruction.opcode == "while":
                        trips = instruction.trip_count
                        if trips is not None and key == "condition":
                            trips += 1  # asked once more, to leave
                        loops = (*loops, Loop(name, trips))
                    yield from self._visit(Visit(self.computations[name], instruction, loops))

    @cached_property
    def times(self) -> dict[str, int]:
        """Computation to how often a step runs it: the product of the trip counts around it, over all its callers."""
        times: Counter[str] = Counter()
        for visit in self.visits():
            times[visit.computation.name] += visit.times
        return dict(times)

    @cached_property
    def home(self) -> dict[str, Computation]:
        """Instruction to the computation it stands in. No two instructions of a module share a name."""
        return {
            instruction.name: computation
            for computation in self.computations.values()
            for instruction in computation.instructions
        }

    def find(self, name: str) -> Instruction | None:
        """The instruction of this name, wherever it stands."""
        return self.home[name].by_name[name] if name in self.home else None

    def is_matmul(self, instruction: Instruction) -> bool:
        """A matrix product or convolution, or a fusion or call with one inside."""
        if instruction.opcode in ("dot", "convolution", "ragged-dot"):
            return True
        if instruction.opcode == "custom-call":
            return MATMUL_TARGET.search(instruction.attributes.get("custom_call_target", "")) is not None
        inside = [name for names in instruction.sequences.values() for name in names]
        return any(self.is_matmul(inner) for name in inside for inner in self.computations[name].instructions)


def parse(text: str) -> Module:
    """The module XLA printed. A line it cannot read is a ValueError with its number."""
    header, device_count = "", 1
    computations: dict[str, Computation] = {}
    entry = name = None
    is_entry = False
    instructions: list[Instruction] = []
    for number, line in enumerate(text.split("\n"), 1):
        if name is not None:
            if not line.startswith("}"):
                instructions.append(_instruction(line, number))
                continue
            computations[name] = Computation(name, tuple(instructions))
            entry = name if is_entry else entry
            name, instructions = None, []
        elif line.startswith("HloModule"):
            header = line.split()[1].rstrip(",")
            counts = re.findall(r"(?:num_partitions|replica_count)=(\d+)", line)
            device_count = math.prod(int(count) for count in counts)
        elif line.endswith("{") and (start := COMPUTATION.match(line)):
            is_entry, name = start[1] is not None, start[2]
    if entry is None:
        raise ValueError("HLO: the text has no ENTRY computation")
    computations = {name: _counted(computation, computations) for name, computation in computations.items()}
    return Module(header, device_count, computations, computations[entry])


def _counted(computation: Computation, computations: Mapping[str, Computation]) -> Computation:
    """With its loops counted of which XLA does not say how often they turn, as on TPUs."""
    uncounted = [one for one in computation.instructions if one.opcode == "while" and one.trip_count is None]
    if not uncounted:
        return computation
    counted = {one.name: replace(one, turns=_turns(one, computation, computations)) for one in uncounted}
    return Computation(computation.name, tuple(counted.get(one.name, one) for one in computation.instructions))


def _turns(loop: Instruction, home: Computation, computations: Mapping[str, Computation]) -> int | None:
    """Of a loop whose counter starts at a constant, goes up by 1, and has to be less than another; else None."""
    condition, body = (computations.get(loop.called[key][0]) for key in ("condition", "body"))
    if condition is None or body is None:  # of an excerpt
        return None
    asked, start, next_round = condition.root, home.by_name.get(loop.operands[0]), body.root
    if asked.opcode != "compare" or asked.attributes.get("direction") != "LT":
        return None
    counter, end = (condition.by_name[name] for name in asked.operands)
    if counter.opcode != "get-tuple-element" or not start or {start.opcode, next_round.opcode} != {"tuple"}:
        return None
    index = int(counter.attributes["index"])
    first, last = _constant(start.operands[index], home), _constant(end.name, condition)
    increment = body.by_name[next_round.operands[index]]
    steps = [_constant(name, body) for name in increment.operands] if increment.opcode == "add" else []
    others = [body.by_name[name] for name, step in zip(increment.operands, steps, strict=False) if step is None]
    adds_one = sorted(steps, key=str) == [1, None] and others[0].attributes.get("index") == str(index)
    return None if first is None or last is None or not adds_one else max(0, last - first)


def _constant(name: str, home: Computation) -> int | None:
    """The integer that this is, itself or a copy of it."""
    instruction = home.by_name[name]
    while instruction.opcode in ("copy", "bitcast"):
        instruction = home.by_name[instruction.operands[0]]
    is_integer = instruction.opcode == "constant" and re.fullmatch(r"-?\d+", instruction.arguments)
    return int(instruction.arguments) if is_integer else None


def _instruction(line: str, number: int) -> Instruction:
    start = INSTRUCTION.match(line)
    if start is None:
        raise ValueError(f"HLO, line {number}: not an instruction: {line[:200]}")
    result_end = _closing(line, start.end()) if line[start.end()] == "(" else line.find(" ", start.end())
    opcode = OPCODE.match(line, result_end) if result_end > 0 else None
    if opcode is None:
        raise ValueError(f"HLO, line {number}: no opcode after the result: {line[:200]}")
    end = _closing(line, opcode.end() - 1)
    name, result = opcode[1], line[start.end() : result_end]
    if name == "fusion-start":  # jax 0.12 runs small fusions beside others: read as the fusion, its done as nothing
        name, result = "fusion", result[_closing(result, 1) + 2 : result.rindex(",")]
    return Instruction(
        name=start[2],
        opcode=name,
        result=result,
        arguments=line[opcode.end() : end - 1],
        attribute_text=line[end:].removeprefix(", "),
        is_root=start[1] is not None,
    )


def _closing(line: str, start: int) -> int:
    """Past the parenthesis that closes the one at `start`."""
    depth = 0
    for token in BRACKETS.finditer(line, start):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    raise ValueError(f"HLO: a parenthesis is not closed: {line[:200]}")


def _attribute_parts(text: str) -> Iterator[str]:
    """Cut at the commas outside all brackets and quotes."""
    depth, begin = 0, 0
    for token in ATTRIBUTE_PARTS.finditer(text):
        if token[0] in "([{":
            depth += 1
        elif token[0] in ")]}":
            depth -= 1
        elif token[0] == ", " and depth == 0:
            yield text[begin : token.start()]
            begin = token.end()
    yield text[begin:]
