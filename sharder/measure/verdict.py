"""What a run was bound by, in words and from parts that add up to its wall time.

data, peers, host   the devices were idle: no batch was there, another process was late, or the host was at work
device              the devices were busy
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

BOUND = 0.05  # share of the steps' time from which on an idle device is worth a word
PARTS = {
    "device": "device",
    "data": "waiting for data",
    "peers": "waiting for other processes",
    "host": "host",
}  # and how they are said


@dataclass(frozen=True)
class Verdict:
    bound_by: str  # device | input | peers | host
    share: float  # of the steps' time that went there
    text: str


def verdict(seconds: Mapping[str, float], steps: int, workers: int) -> Verdict | None:
    """`seconds` by PARTS, of `steps` steps; `workers`: data.workers, where 0 is one thread of the training process.

    None without a step to speak of.
    """
    total = sum(seconds.get(part, 0.0) for part in PARTS)
    if steps < 1 or total <= 0:
        return None
    share = {part: seconds.get(part, 0.0) / total for part in PARTS}
    ms = {part: seconds.get(part, 0.0) / steps * 1e3 for part in PARTS}
    parts = f"{total / steps * 1e3:.1f} ms a step: "
    parts += " + ".join(f"{ms[part]:.1f} {said}" for part, said in PARTS.items())
    if seconds.get("pause"):
        parts += f"; saves, evaluations and traces took {seconds['pause']:.1f} s beside"
    idle = max(("data", "peers", "host"), key=lambda part: share[part])
    if share[idle] < BOUND:
        said = f"device-bound: the devices were busy {share['device']:.0%} of the time ({parts})"
        return Verdict("device", share["device"], said)
    without = total / (total - seconds.get(idle, 0.0)) if share[idle] < 1 else math.inf
    gain = f"without that a step would be {without:.2f} times as fast"
    if idle == "data":
        making = max(1, workers)
        # Makers that are always behind make `making` batches while one step goes by.
        busy_ms = (total - seconds["data"]) / steps * 1e3
        cure = math.ceil(making * (total / steps * 1e3) / busy_ms) if busy_ms else None
        fix = f"set data.workers={cure}" if cure else "make batches cheaper"
        return Verdict(
            "input", share[idle],
            f"input-bound: {share[idle]:.0%} of the time no batch was ready; {gain}; {fix} (now {workers}), if there "
            f"are cores for them ({parts})",
        )  # fmt: skip
    if idle == "peers":
        return Verdict(
            "peers", share[idle], f"held up by other processes {share[idle]:.0%} of the time; {gain} ({parts})"
        )
    return Verdict(
        "host", share[idle],
        f"host-bound: {share[idle]:.0%} of the time the devices waited for this process to dispatch; {gain}; a larger "
        f"train.batch_size or train.log_every gives it less to do ({parts})",
    )  # fmt: skip
