"""What a train step needs of a device's memory, by kind, and what saving it needs of the host and the disk.

    weights, moments, average, batch    from shapes and placements: what one device holds of them
    the rest                            from the compiler: what of its temporaries is alive when most of them are

A temporary is of a weight's kind when it has the dims of one, whole or in slices, of one layer or of the stack; whether
it is a gradient or a weight gathered or cast for use, the scope it was computed in tells. The sum of all kinds is less
than what the program takes by the gaps between temporaries, which is a row of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from sharder.config import Config, HardwareConfig
from sharder.errors import UserError
from sharder.measure.costs import is_workspace
from sharder.measure.hlo import Module
from sharder.parallel.layout import device_bytes, held_whole
from sharder.parallel.mesh import FSDP
from sharder.predict.buffers import Buffer, at_peak, covered_bytes
from sharder.predict.communication import FEW
from sharder.predict.compiled import total_bytes
from sharder.training.program import Program
from sharder.training.state import state_bytes

WEIGHTS, MOMENTS, AVERAGE, BATCH = "weights", "optimizer moments", "average of the weights (EMA)", "batch"
GRADIENTS, IN_USE, KEPT = "gradients", "gathered weights", "gradients of the last step (optimizer.updates=false)"
ACTIVATIONS, WORKSPACE = "activations and temporaries", "workspace of matrix products"
OUTPUTS, UNDIVIDED = "outputs not in place", "gradients, gathered weights, activations and temporaries"
PADDING = "padding of what is placed"  # a TPU keeps arrays in tiles
GAPS = "gaps between temporaries, not told apart"
FRACTION = "XLA_CLIENT_MEM_FRACTION"
OLD_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # jax reads it too, but not beside the other
MOST_SENSIBLE_FRACTION = 0.95  # CUDA's context and NCCL's buffers lie outside the allocator's share

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """Of one device."""

    kind: str
    bytes: int
    source: str  # placement: from shapes and places | compiled: from the compiler | remainder


@dataclass(frozen=True)
class Memory:
    parts: tuple[Part, ...]  # add up to `total_bytes`
    total_bytes: int  # arguments + outputs + temporaries - what comes out in place: what a device must have
    hbm_bytes: int  # of a device
    share: float  # of it, what a program can have
    share_source: str
    held_whole: tuple[str, ...]  # weights above a MB that every device holds whole
    refused: str | None = None  # by the compiler itself, for lack of memory: in its words

    @property
    def limit_bytes(self) -> int:
        return int(self.hbm_bytes * self.share)

    @property
    def fits(self) -> bool:
        return self.refused is None and self.total_bytes <= self.limit_bytes

    @property
    def fits_with_fraction(self) -> float | None:
        """The allocator's share, in hundredths, that would make room for what does not fit."""
        needed = np.ceil(100 * self.total_bytes / self.hbm_bytes) / 100
        possible = self.refused is None and not self.fits and needed <= MOST_SENSIBLE_FRACTION
        return float(needed) if possible and self.share_source != UNSHARED else None


UNSHARED = "all that the compiler gives a program"


@dataclass(frozen=True)
class Saving:
    """Of one checkpoint."""

    host_bytes: int  # in the memory of the host that writes most, while it is saved
    disk_bytes: int  # over all hosts, before compression
    kept: int  # checkpoints on disk at once, with the one being written


def memory(
    program: Program, analysis: Mapping[str, int], module: Module, temporaries: Sequence[Buffer] | None
) -> Memory:
    """`analysis`: as compiled.memory_bytes has it. `temporaries` None: the compiler does not tell them apart."""
    state_parts = placed_parts(program)
    new = analysis["outputs"] - analysis["in_place"]
    compiled = {PADDING: analysis["arguments"] - sum(state_parts.values()), OUTPUTS: new}
    compiled |= temporary_parts(program, module, temporaries, analysis["temporaries"])
    total = total_bytes(analysis)
    parts = [Part(kind, count, "placement") for kind, count in state_parts.items()]
    parts += [Part(kind, count, "compiled") for kind, count in compiled.items() if count]
    parts.append(Part(GAPS, total - sum(part.bytes for part in parts), "remainder"))
    return _memory(program, tuple(parts), total)


def refused(program: Program, words: str) -> Memory:
    """Where the compiler itself found that it does not fit: what is placed is known, the rest is not."""
    parts = tuple(Part(kind, count, "placement") for kind, count in placed_parts(program).items())
    return _memory(program, parts, sum(part.bytes for part in parts), words)


def _memory(program: Program, parts: tuple[Part, ...], total: int, words: str | None = None) -> Memory:
    hardware = program.config.hardware
    assert hardware.hbm_bytes is not None
    share, source = allocator_share(hardware)
    whole = held_whole(program.state.weights, program.layout) if program.mesh.shape[FSDP] > 1 else []
    return Memory(parts, total, hardware.hbm_bytes, share, source, tuple(whole), words)


def placed_parts(program: Program) -> dict[str, int]:
    """Kind -> bytes that one device holds from step to step. The few counters are with the moments."""
    state = program.state
    return {
        WEIGHTS: device_bytes((state.trainable, state.frozen)),
        MOMENTS if program.config.optimizer.updates else KEPT: device_bytes((state.optimizer, state.step)),
        AVERAGE: device_bytes(state.ema),
        BATCH: device_bytes(program.batch),
    }


def limit_bytes(hardware: HardwareConfig) -> int:
    """What a program can have of one device. UserError: less than a byte."""
    assert hardware.hbm_bytes is not None
    share, source = allocator_share(hardware)
    limit = int(hardware.hbm_bytes * share)
    if limit < 1:
        raise UserError(
            f"hardware.hbm_bytes: found {hardware.hbm_bytes}, of which a program can have {share:g} ({source}), not "
            "one byte; allowed: what a device has; leave hardware.hbm_bytes and the share as they are"
        )
    return limit


def allocator_share(hardware: HardwareConfig, environ: Mapping[str, str] = os.environ) -> tuple[float, str]:
    """(the share of a device's memory that a program can have, who says so)."""
    assert hardware.memory_share is not None
    if hardware.kind.startswith("tpu"):
        return hardware.memory_share, UNSHARED
    given = {name: environ[name] for name in (FRACTION, OLD_FRACTION) if environ.get(name)}  # empty: as if not set
    if not given:
        return hardware.memory_share, "hardware.memory_share, what jax's allocator takes"
    if len(given) > 1:
        raise UserError(f"{OLD_FRACTION}: found beside {FRACTION}, allowed by jax: one of them; unset {OLD_FRACTION}")
    ((name, value),) = given.items()
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UserError(f"{name}: found {value!r}, allowed: above 0, at most 1; set it so, or leave it out")
    return share, f"{name}, which jax's allocator takes"


def temporary_parts(
    program: Program, module: Module, temporaries: Sequence[Buffer] | None, total: int
) -> dict[str, int]:
    """Kind -> bytes of what is alive at the peak. Values on the same bytes count once, as the first kind that fits."""
    if temporaries is None:
        return {UNDIVIDED: total}
    kinds = _Kinds(program, module)
    by_kind: dict[str, list[Buffer]] = {kind: [] for kind in (GRADIENTS, IN_USE, ACTIVATIONS, WORKSPACE)}
    for buffer in at_peak(temporaries):
        by_kind[kinds.of(buffer)].append(buffer)
    parts, counted, so_far = {}, 0, list[Buffer]()
    for kind, found in by_kind.items():
        so_far += found
        covered = covered_bytes(so_far)
        parts[kind], counted = covered - counted, covered
    return parts


def _key(dims: Iterable[int]) -> Dims:
    return tuple(sorted(size for size in dims if size != 1))


class _Kinds:
    """Which temporaries of a program are of which kind."""

    def __init__(self, program: Program, module: Module):
        self.module = module
        self.one_layer: set[Dims] = set()
        self.stacks: set[Dims] = set()  # and weights outside the layers
        shards = program.mesh.shape[FSDP]
        for path, weight in program.state.weights.items():
            slicing = program.layout[path]
            self._add(self.stacks, tuple(weight.shape), slicing.dim, shards)
            if slicing.stacked:
                self._add(self.one_layer, tuple(weight.shape[1:]), slicing.layer_dim, shards)

    @staticmethod
    def _add(forms: set[Dims], dims: Dims, dim: int | None, shards: int) -> None:
        forms.add(_key(dims))
        if dim is not None:
            forms.add(_key((*dims[:dim], dims[dim] // shards, *dims[dim + 1 :])))

    def of(self, buffer: Buffer) -> str:
        instruction = self.module.find(buffer.instruction)
        if len(buffer.shapes) != 1 or instruction is None:
            return ACTIVATIONS
        (shape,) = buffer.shapes
        if instruction.opcode in ("custom-call", "fusion") and is_workspace(shape):
            return WORKSPACE
        key = _key(shape.dims)
        if len(key) < 2 or shape.elements <= FEW or not (key in self.stacks or key in self.one_layer):
            return ACTIVATIONS
        op_name, opcode = instruction.op_name, instruction.opcode
        if opcode.startswith("all-gather") or "gather_weights" in op_name:
            return IN_USE
        if opcode.startswith(("reduce-scatter", "all-reduce", "all-to-all")) or "reduce_gradients" in op_name:
            return GRADIENTS
        if opcode in ("while", "parameter", "tuple", "get-tuple-element") or not op_name:
            return IN_USE if key in self.one_layer else GRADIENTS  # loops pass on what is gathered, and add up the rest
        if self.module.is_matmul(instruction):  # no product gives a weight
            return GRADIENTS
        return GRADIENTS if "transpose(" in op_name or "optimizer" in op_name else IN_USE


def saving(program: Program) -> Saving:
    """Each piece of the state is copied by the first device that holds it, so a host copies what its devices do."""
    by_host: dict[int, int] = {}
    counted: dict[tuple[Any, Dims], dict[int, int]] = {}
    for leaf in jax.tree.leaves(program.state):
        key = leaf.sharding, tuple(leaf.shape)
        if key not in counted:
            counted[key] = _pieces_by_host(leaf.sharding, tuple(leaf.shape))
        piece_bytes = int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize
        for host, pieces in counted[key].items():
            by_host[host] = by_host.get(host, 0) + pieces * piece_bytes
    return Saving(max(by_host.values()), state_bytes(program.state), kept_at_once(program.config))


def _pieces_by_host(sharding: NamedSharding, shape: Dims) -> dict[int, int]:
    holders: Mapping[Any, Any] = sharding.devices_indices_map(shape)
    first: dict[str, int] = {}
    for device, index in holders.items():
        first.setdefault(str(index), device.process_index)
    counts: dict[int, int] = {}
    for host in first.values():
        counts[host] = counts.get(host, 0) + 1
    return counts


def kept_at_once(config: Config) -> int:
    """At most: as training/checkpoint.py refuses to start without room for."""
    steps, keep = config.train.steps, config.checkpoint
    kept = keep.keep + (steps // keep.keep_every if keep.keep_every else 0)
    return min(kept, -(-steps // keep.every_steps)) + 1
