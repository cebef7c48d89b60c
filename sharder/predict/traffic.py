"""What a planned step moves between devices: every collective, their sum, and what layout gather has to move."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sharder.measure.hlo import Module
from sharder.predict import communication
from sharder.predict.communication import ACTIVATIONS, OTHER, Row, Total
from sharder.predict.sizes import in_words
from sharder.training.program import Program

WORTH_SAYING = 0.01  # of the payload: activations that travel are no accident


@dataclass(frozen=True)
class Moved:
    """One tensor of one collective."""

    name: str  # the instruction, which moves others too where several are joined
    kind: str  # all-gather ...
    tensor: str  # one of communication.TENSORS
    what: str  # the weights it may be, else as `tensor`
    scope: str  # where in the step it comes from, as jax names it; empty for what XLA added
    dtype: str
    dims: tuple[int, ...]  # whole
    group_size: int  # devices that take part together
    between_hosts: bool
    times: int  # a step
    payload_bytes: int  # a step, of whole tensors
    sent_bytes: float  # a step, by each device
    is_async: bool
    instructions_between: int  # that run while it is under way, each time
    matmuls_between: int  # of these


@dataclass(frozen=True)
class Traffic:
    moved: tuple[Moved, ...]  # most bytes first
    payload_bytes: int  # a step
    sent_bytes: float  # a step, by each device
    ideal_bytes: int  # a step: payload that layout gather has to move at least
    said: str  # the sum beside the ideal, and whether activations travel, in words


def traffic(program: Program, module: Module) -> tuple[Traffic, list[Total]]:
    """And the totals by kind and tensor."""
    rows = communication.of(program, module)
    host_of = {i: device.process_index for i, device in enumerate(program.mesh.devices.flat)}
    moved = tuple(sorted((_moved(row, host_of) for row in rows), key=lambda one: -one.payload_bytes))
    ideal = sum(communication.ideal_bytes(program).values())
    payload, sent = sum(one.payload_bytes for one in moved), sum(one.sent_bytes for one in moved)
    return Traffic(moved, payload, sent, ideal, said(program.config.layout.name, moved, ideal)), communication.totals(
        rows
    )


def _moved(row: Row, host_of: dict[int, int]) -> Moved:
    collective = row.collective
    return Moved(
        name=collective.name,
        kind=row.kind,
        tensor=row.tensor,
        what=row.what,
        scope=collective.op_name,
        dtype=row.dtype,
        dims=row.dims,
        group_size=collective.group_size,
        between_hosts=_between_hosts(collective.groups, host_of),
        times=row.times,
        payload_bytes=row.payload_bytes,
        sent_bytes=row.sent_bytes,
        is_async=row.is_async,
        instructions_between=len(collective.between),
        matmuls_between=sum(work.is_matmul for work in collective.between),
    )


def _between_hosts(groups: Iterable[Sequence[int]], host_of: dict[int, int]) -> bool:
    """A permute, which has no groups, counts as such where there are several hosts."""
    found = [{host_of[device] for device in group} for group in groups] or [set(host_of.values())]
    return any(len(hosts) > 1 for hosts in found)


def said(layout: str, moved: Sequence[Moved], ideal: int) -> str:
    payload = sum(one.payload_bytes for one in moved if one.tensor != OTHER)
    activations = sum(one.payload_bytes for one in moved if one.tensor == ACTIVATIONS)
    if not payload:
        return "nothing travels"
    if not ideal:
        return f"{in_words(payload)} of payload a step, and layout=gather would move nothing"
    text = f"{in_words(payload)} of payload a step, {payload / ideal:.3g} times the {in_words(ideal)} "
    text += "that the shapes ask for" if layout == "gather" else "that layout=gather would move"
    if activations > WORTH_SAYING * payload:
        text += f"; {activations / payload:.0%} of it are activations that travel where weights should"
        text += "" if layout == "gather" else ": layout=gather moves weights and their gradients alone"
    return text
