"""Where each instruction of a program belongs, also those that XLA added or rewrote without saying where they are from.

Such an instruction belongs where its operands come from: the largest of them that is known to come from a block; else
where its result goes; else so for the fusion that it is in; else where the loop stands that it is in. That is a guess,
a good one for a layout change or a product that was rewritten, and how much time rests on it is reported.
"""

from __future__ import annotations

from collections.abc import Iterable

from sharder.measure.categories import LAYER_LOOP, OTHER, UNSCOPED, Place, place_of, says_where
from sharder.measure.hlo import Computation, Instruction, Module

NO_EVIDENCE = {"constant", "get-tuple-element", "iota", "parameter", "tuple", "while"}  # of where their readers belong
FARTHEST = 6  # instructions to look past
NOWHERE = Place(OTHER, UNSCOPED, "outside")


class Places:
    """Of one module; what was asked for is remembered."""

    def __init__(self, module: Module):
        self.module = module
        self.callers = {visit.computation.name: visit.caller for visit in module.visits() if visit.caller is not None}
        self._readers: dict[str, dict[str, list[Instruction]]] = {}
        self._found: dict[str, Place] = {}
        self._said: dict[str, Place | None] = {}

    def of(self, instruction: Instruction) -> Place:
        if instruction.name not in self._found:
            self._found[instruction.name] = self._find(instruction)
        return self._found[instruction.name]

    def _find(self, instruction: Instruction) -> Place:
        known = self._known(instruction)
        if known is not None:
            return known
        home: Computation | None = self.module.home[instruction.name]
        found: list[Place] = []
        while home is not None:
            found += [place for place in (self._behind(instruction, home), self._ahead(instruction, home)) if place]
            caller = self.callers.get(home.name)
            if caller is None:
                break
            if says_where(caller.op_name):
                found.append(place_of(caller.op_name, caller.name))
            instruction, home = caller, self.module.home[caller.name] if caller.opcode == "fusion" else None
        return next((place for place in found if _is_block(place)), found[0] if found else NOWHERE)

    def _behind(self, instruction: Instruction, home: Computation, farthest: int = FARTHEST) -> Place | None:
        """Where its operands come from."""
        operands = [home.by_name[name] for name in dict.fromkeys(instruction.operands)]
        operands.sort(key=lambda operand: -sum(shape.bytes for shape in operand.shapes))
        return _best(
            self._known(operand) or (self._behind(operand, home, farthest - 1) if farthest else None)
            for operand in operands
            if operand.opcode not in NO_EVIDENCE
        )

    def _ahead(self, instruction: Instruction, home: Computation, farthest: int = FARTHEST) -> Place | None:
        """Where its result goes."""
        return _best(
            self._known(reader) or (self._ahead(reader, home, farthest - 1) if farthest else None)
            for reader in self._read_by(instruction, home)
        )

    def _known(self, instruction: Instruction) -> Place | None:
        """Where it says that it belongs; of a fusion without a path, the last in it that says, in a block if any."""
        if instruction.name not in self._said:
            self._said[instruction.name] = self._says(instruction)
        return self._said[instruction.name]

    def _says(self, instruction: Instruction) -> Place | None:
        if says_where(instruction.op_name):
            return place_of(instruction.op_name, instruction.name)
        inside = [self.module.computations[name] for name in instruction.sequences.get("calls", ())]
        last_first = [inner for computation in inside for inner in reversed(computation.instructions)]
        return _best(place_of(inner.op_name, inner.name) for inner in last_first if says_where(inner.op_name))

    def _read_by(self, instruction: Instruction, home: Computation) -> list[Instruction]:
        if home.name not in self._readers:
            readers: dict[str, list[Instruction]] = {}
            for reader in home.instructions:
                for name in dict.fromkeys(reader.operands):
                    readers.setdefault(name, []).append(reader)
            self._readers[home.name] = readers
        return self._readers[home.name].get(instruction.name, [])


def _is_block(place: Place) -> bool:
    return place.category not in (OTHER, LAYER_LOOP) and place.part != LAYER_LOOP


def _best(places: Iterable[Place | None]) -> Place | None:
    """The first in a block; else the first."""
    found = [place for place in places if place is not None]
    return next((place for place in found if _is_block(place)), found[0] if found else None)
