"""One small collective over all devices before anything slow: where devices cannot talk, the run ends in a line."""

from __future__ import annotations

import threading
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from sharder.errors import UserError
from sharder.parallel.compile_cache import every_process_writes
from sharder.parallel.mesh import BATCH, FSDP, batch_split

REMEDIES = (
    "known remedies: NCCL_P2P_DISABLE=1 where GPUs of one machine hang, NCCL_SOCKET_IFNAME=<interface> where machines "
    "do, NCCL_DEBUG=INFO to see where it stops; a longer launch.preflight_timeout_s where it is only slow"
)


def preflight(mesh: Mesh, timeout_s: float, collective: Callable[[Mesh], int] | None = None) -> None:
    """Sums the numbers of all devices; UserError when that does not return in time or is wrong.

    It runs in a thread of its own, which is left behind when it hangs: whoever catches the error must not wait for it.
    `collective` is another one, for tests.
    """
    if mesh.size == 1:
        return
    outcome: list[int | BaseException] = []

    def run() -> None:
        try:
            outcome.append((collective or sum_of_devices)(mesh))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="preflight", daemon=True)
    thread.start()
    thread.join(timeout_s)
    where = f"{mesh.size} devices of {len({d.process_index for d in mesh.devices.flat})} processes"
    if not outcome:
        raise UserError(f"preflight: a first sum over {where} has not returned after {timeout_s:.0f} s; {REMEDIES}")
    if isinstance(outcome[0], BaseException):
        reason = str(outcome[0]).splitlines()[0] if str(outcome[0]) else type(outcome[0]).__name__
        raise UserError(f"preflight: a first sum over {where} failed ({reason}); {REMEDIES}") from outcome[0]
    wanted = sum(range(mesh.size))
    if outcome[0] != wanted:
        raise UserError(f"preflight: a first sum over {where} gave {outcome[0]}, right is {wanted}; {REMEDIES}")


def sum_of_devices(mesh: Mesh) -> int:
    """Each device adds its place in the mesh."""
    numbers = jax.make_array_from_callback(
        (mesh.size,), batch_split(mesh), lambda index: np.arange(mesh.size, dtype=np.int32)[index]
    )
    split, whole = PartitionSpec((BATCH, FSDP)), PartitionSpec()

    def preflight_sum(x: jax.Array) -> jax.Array:
        return jax.lax.psum(x[0], (BATCH, FSDP))

    lowered = jax.jit(jax.shard_map(preflight_sum, mesh=mesh, in_specs=split, out_specs=whole)).lower(numbers)
    with every_process_writes(mesh):
        add = lowered.compile()
    return int(add(numbers).addressable_data(0))
