"""What a compiled train step moves between devices, tensor by tensor, and what layout gather has to move at least.

A compiled program knows no weights by name. A tensor is told by its dims, whatever their order (XLA transposes), and
dims of 1 left out; weights of the same dims in one layer share a row. Where layout gather names its collectives
(`gather_weights`, `reduce_gradients`, `embedding`), the name settles what the dims do not.

    layer weights    of the scanned layers, one layer's or the whole stack
    other weights    the rest, but for the token table
    gradients        what has the dims of a weight and is summed, or gathered though its weight is held whole by every
                     device; and the small ones packed together
    embedding        the token table, its gradient, the rows looked up in it and the numbers of those rows
    other            inputs as they are in the batch, and vectors of a few numbers: losses, norms
    activations      all else
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from sharder.measure.collectives import Collective, collectives
from sharder.measure.hlo import Computation, Instruction, Module, Shape
from sharder.model.weight import travels_as
from sharder.parallel.layout import TABLE
from sharder.parallel.mesh import BATCH, FSDP
from sharder.training.gradients import fixed_order
from sharder.training.program import Program

LAYER_WEIGHTS, OTHER_WEIGHTS, GRADIENTS = "layer weights", "other weights", "gradients"
EMBEDDING, ACTIVATIONS, OTHER = "embedding", "activations", "other"
TENSORS = (LAYER_WEIGHTS, OTHER_WEIGHTS, GRADIENTS, EMBEDDING, ACTIVATIONS, OTHER)
SUMMING = ("all-reduce", "reduce-scatter")
FEW = 256  # numbers: a vector of no more than these is none of the tensors of the model

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One tensor of one collective, which may move several at once."""

    kind: str  # of the collective
    tensor: str  # one of TENSORS
    what: str  # the paths it may be a weight or gradient of, with " | " between; else as `tensor`
    dtype: str
    dims: Dims  # before it is scattered, after it is gathered
    times: int  # in a step
    payload_bytes: int  # in a step, of whole tensors
    sent_bytes: float  # in a step, by each device
    is_async: bool
    work_between: int  # instructions that run while it is under way
    collective: Collective


def of(program: Program, module: Module) -> list[Row]:
    """`module`: what `program` compiled to."""
    names = _Names(program)
    return [row for one in collectives(module) for row in _rows(one, names, module)]


def _rows(one: Collective, names: _Names, module: Module) -> Iterable[Row]:
    rounds = one.sent_bytes / one.payload_bytes if one.payload_bytes else 0
    sends_whole = sum(shape.bytes for shape in one.operands) == one.payload_bytes
    for shape in _unpacked(one, module) if sends_whole else one.results:
        tensor, what = names.of(one, shape)
        payload = shape.bytes * one.times
        yield Row(
            kind=one.kind,
            tensor=tensor,
            what=what,
            dtype=shape.dtype,
            dims=shape.dims,
            times=one.times,
            payload_bytes=payload,
            sent_bytes=payload * rounds,
            is_async=one.is_async,
            work_between=len(one.between),
            collective=one,
        )


def _unpacked(one: Collective, module: Module) -> Iterable[Shape]:
    """Its operands; for a vector that XLA packed from several tensors, those."""
    computation = module.computations[one.computation]
    for name in computation.by_name[one.name].operands:
        operand = computation.by_name[name]
        parts = [_before_bitcasts(computation, part) for part in operand.operands]
        is_pack = _root(operand, module).opcode == "concatenate" and len(operand.shapes[0].dims) == 1
        if is_pack and sum(part.elements for part in parts) == operand.shapes[0].elements:
            yield from parts
        else:
            yield from operand.shapes


def _root(instruction: Instruction, module: Module) -> Instruction:
    """Of a fusion, the instruction inside whose result is the fusion's."""
    if instruction.opcode != "fusion":
        return instruction
    (name,) = instruction.called["calls"]
    return module.computations[name].root


def _before_bitcasts(computation: Computation, name: str) -> Shape:
    """A tensor's shape before it was called a vector."""
    instruction = computation.by_name[name]
    while instruction.opcode == "bitcast":
        instruction = computation.by_name[instruction.operands[0]]
    return instruction.shapes[0]


def _key(dims: Iterable[int]) -> Dims:
    return tuple(sorted(size for size in dims if size != 1))


class _Names:
    """Which tensors of a program have which dims."""

    def __init__(self, program: Program):
        shards, weights, self.layout = program.mesh.shape[FSDP], program.state.weights, program.layout
        self.whole = {path for path, slicing in program.layout.items() if slicing.dim is None}
        self.weights: dict[Dims, list[str]] = {}
        for path, weight in weights.items():
            slicing = program.layout[path]
            whole = tuple(weight.shape)
            forms = [(whole, slicing.dim)]
            if slicing.stacked:
                forms.append((whole[1:], slicing.layer_dim))
            for dims, dim in forms:
                self._add(path, dims)
                if dim is not None:
                    part = (*dims[:dim], dims[dim] // shards, *dims[dim + 1 :])
                    self._add(path, (shards, *part))  # as an all-to-all takes it
                    if program.mesh.shape[BATCH] > 1:
                        self._add(path, part)  # summed over groups
        small = sum(weights[path].size for path in program.state.trainable if program.layout[path].together)
        self.packed = {-(-small // size) * size for size in (1, *program.mesh.shape.values())}
        self.prompt_tokens = program.config.model.prompt_tokens
        self.inputs = {_key(leaf.shape) for leaf in jax.tree.leaves(program.batch)}

    def _add(self, path: str, dims: Dims) -> None:
        paths = self.weights.setdefault(_key(dims), [])
        if path not in paths:
            paths.append(path)

    def of(self, one: Collective, shape: Shape) -> tuple[str, str]:
        """(one of TENSORS, what)."""
        scopes, key = one.op_name.split("/"), _key(shape.dims)
        paths = self.weights.get(key, []) if len(key) > 1 or shape.elements > FEW else []
        if one.in_loop:
            paths = [path for path in paths if self.layout[path].stacked] or paths
        summed = one.kind in SUMMING or "reduce_gradients" in scopes
        if TABLE in paths or "embedding" in scopes or (shape.dtype == "s32" and key[-1:] == (self.prompt_tokens,)):
            return EMBEDDING, " | ".join(paths) or "rows"
        if paths:
            if summed or self.whole.issuperset(paths):  # a weight that is held whole has no slices to gather
                return GRADIENTS, " | ".join(paths)
            in_layers = any(self.layout[path].stacked for path in paths)
            return LAYER_WEIGHTS if in_layers else OTHER_WEIGHTS, " | ".join(paths)
        if summed and shape.dtype == "f32" and shape.elements in self.packed:
            return GRADIENTS, "packed"
        if "reduce_gradients" in scopes:
            return GRADIENTS, "unrecognized"
        if len(key) < 2 and shape.elements <= FEW:
            return OTHER, OTHER
        return (OTHER, "inputs") if key in self.inputs else (ACTIVATIONS, ACTIVATIONS)


def ideal_bytes(program: Program) -> dict[str, int]:
    """Collective kind -> payload bytes of a step under layout gather, from shapes alone.

    A layer's weights are gathered twice, forward and backward, in every microbatch; the rest once; trained ones are
    summed once. The few scalars of loss and norm are not counted.
    """
    config, layout, state = program.config, program.layout, program.state
    microbatches, compute = config.train.accumulation, jnp.dtype(config.model.compute_dtype)
    shards = program.mesh.shape[FSDP]
    moved = _Moved(shards, program.mesh.shape[BATCH], fixed_order(config.layout, program.mesh))
    for path, weight in state.weights.items():
        slicing, stored = layout[path], weight.dtype.itemsize
        whole, is_trained = weight.size, path in state.trainable
        if path == TABLE and slicing.dim is not None:
            rows = config.train.batch_size // program.mesh.size * config.model.prompt_tokens
            moved.add("all-gather", shards * rows * 4)  # which rows, int32
            moved.add("all-to-all", rows * weight.shape[1] * stored)
            if is_trained:
                moved.add("all-to-all", rows * weight.shape[1] * 4)
                moved.sum_over_groups(whole // shards, 4)
            continue
        travels = travels_as(path, weight.dtype, compute).itemsize if slicing.stacked else stored
        if slicing.dim is not None:
            moved.add("all-gather", whole * travels * (2 * microbatches if slicing.stacked else 1))
        if is_trained and (slicing.together or path == TABLE):
            moved.sum(whole, 4)
        elif is_trained:
            summed_in = 4 if microbatches > 1 and slicing.stacked else travels
            if slicing.dim is None:
                moved.sum(whole, summed_in)
            else:
                moved.scatter(whole, summed_in)
                moved.sum_over_groups(whole // shards, summed_in)
    return {kind: count for kind, count in moved.bytes.items() if count}


class _Moved:
    """Adds up, by kind, what parallel/collectives.py would move."""

    def __init__(self, shards: int, groups: int, fixed_order: bool):
        self.bytes: Counter[str] = Counter()
        self.shards, self.groups, self.fixed_order = shards, groups, fixed_order

    def add(self, kind: str, count: int) -> None:
        self.bytes[kind] += count if self.shards > 1 else 0

    def scatter(self, elements: int, itemsize: int) -> None:
        self.add("all-to-all" if self.fixed_order else "reduce-scatter", elements * itemsize)

    def sum(self, elements: int, itemsize: int) -> None:
        self._sum(elements, itemsize, self.shards)
        self.sum_over_groups(elements, itemsize)

    def sum_over_groups(self, elements: int, itemsize: int) -> None:
        # What a scatter in fixed order leaves is float32.
        self._sum(elements, 4 if self.fixed_order and self.shards > 1 else itemsize, self.groups)

    def _sum(self, elements: int, itemsize: int, devices: int) -> None:
        if devices == 1:
            return
        if not self.fixed_order:
            self.bytes["all-reduce"] += elements * itemsize
            return
        padded = math.ceil(elements / devices) * devices
        self.bytes["all-to-all"] += padded * itemsize
        self.bytes["all-gather"] += padded * 4


@dataclass(frozen=True)
class Total:
    """Of the tensors of one sort that collectives of one kind move, in a step."""

    kind: str
    tensor: str
    payload_bytes: int
    sent_bytes: float  # by each device
    count: int  # collectives that carry any of them
    hidden_share: float  # of the payload, what is asynchronous and has work between start and done


def totals(rows: Iterable[Row]) -> list[Total]:
    """By kind and tensor, most bytes first."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.kind, row.tensor), []).append(row)
    found = [_total(kind, tensor, group) for (kind, tensor), group in groups.items()]
    return sorted(found, key=lambda total: -total.payload_bytes)


def _total(kind: str, tensor: str, rows: list[Row]) -> Total:
    payload = sum(row.payload_bytes for row in rows)
    hidden = sum(row.payload_bytes for row in rows if row.is_async and row.work_between)
    count = sum({id(row.collective): row.times for row in rows}.values())
    return Total(
        kind, tensor, payload, sum(row.sent_bytes for row in rows), count, hidden / payload if payload else 0.0
    )


def table(by_layout: Mapping[str, Iterable[Row]]) -> str:
    """Markdown: a line for each layout, kind and tensor that moves a megabyte or more."""
    lines = [
        "| layout | kind | tensors | payload GB | sent GB a device | collectives | async with work between |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for layout, rows in by_layout.items():
        for total in totals(rows):
            if total.payload_bytes >= 1e6:
                lines.append(
                    f"| {layout} | {total.kind} | {total.tensor} | {total.payload_bytes / 1e9:.3f} | "
                    f"{total.sent_bytes / 1e9:.3f} | {total.count} | {total.hidden_share:.0%} |"
                )
    return "\n".join(lines) + "\n"
