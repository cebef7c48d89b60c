"""Batches from frames decoded on demand and from frames decoded once: how many a second, and what a run waits for them.

    python experiments/frame_cache/measure.py [folder of a LeRobot set]

Writes measured.csv here: see README.md.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sharder.config import Config
from sharder.data.dataset import Dataset, open_dataset
from sharder.data.pipeline import Loader
from sharder.table import write_csv

HERE = Path(__file__).parent
RECORDING = HERE.parents[2] / "shared/data/g1_bottle_v21"
BATCH, WORKERS, PREFETCH = 32, 2, 4
ROUNDS = 6  # of each way in turn, so that what else this machine does is the same for both
ROUND_BATCHES = {"on_demand": 8, "decoded": 80}
STEP_S, STEPS = 0.1, {"on_demand": 20, "decoded": 100}
FAR = 10**6  # steps: further than anything here gets


def settings(root: str) -> Config:
    """pi0's own sizes: images of 224 pixels, 50 actions of 32 numbers, 48 tokens."""
    config = Config()
    config.data.kind, config.data.root, config.data.workers = "lerobot", root, WORKERS
    config.train.batch_size = BATCH
    return config


def opened(config: Config, frames: str) -> Dataset:
    """Without frames kept in the workers' memory, where a set that is larger than it does not fit."""
    data = dataclasses.replace(config.data, frames=frames, frame_cache_mib=0)
    return open_dataset(dataclasses.replace(config, data=data))


def loader(data: Dataset) -> Loader:
    return Loader(data.source(), first_step=0, last_step=FAR, workers=WORKERS, prefetch=PREFETCH)


def cpu_s(batches: Loader) -> float:
    """That this process and the loader's workers have taken so far."""
    taken = time.process_time()
    for pid in batches.pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        taken += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return taken


@dataclass
class Made:
    batches: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0

    def round(self, batches: Loader, count: int) -> None:
        """As fast as the workers make them: each is dropped at once. Those made before the round are not counted."""
        for _ in range(PREFETCH):
            next(batches)
        began, cpu = time.perf_counter(), cpu_s(batches)
        for _ in range(count):
            next(batches)
        self.batches += count
        self.seconds += time.perf_counter() - began
        self.cpu_s += cpu_s(batches) - cpu

    @property
    def examples_per_s(self) -> float:
        return self.batches * BATCH / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Of one batch, making, sending and receiving it."""
        return self.cpu_s / self.batches * 1e3


def fastest(ways: dict[str, Dataset]) -> dict[str, Made]:
    made = {name: Made() for name in ways}
    with ExitStack() as stack:
        loaders = {name: stack.enter_context(loader(data)) for name, data in ways.items()}
        for _ in range(ROUNDS):
            for name, batches in loaders.items():  # the other one has its batches ready and is idle
                made[name].round(batches, ROUND_BATCHES[name])
    return made


def waited_s(data: Dataset, steps: int) -> list[float]:
    """Until the batch was there, of every step of a run whose step takes 100 ms on a device: what a run's own clock
    counts. The first batch, which also waits for the workers to start, is not counted there either."""
    waits = []
    with loader(data) as batches:
        next(batches)
        for _ in range(steps):
            time.sleep(STEP_S)
            asked = time.perf_counter()
            while not batches.ready(1.0):
                pass
            waits.append(time.perf_counter() - asked)
            next(batches)
    return waits


def main(root: str) -> None:
    config = settings(root)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        ways = {frames: opened(config, frames) for frames in ("on_demand", "decoded")}
        began = time.perf_counter()
        frames = ways["decoded"].frames
        assert frames is not None
        once_s = time.perf_counter() - began
        made = fastest(ways)
        for name, data in ways.items():
            waits, load = waited_s(data, STEPS[name]), os.getloadavg()[0]
            rows.append(
                {
                    "kind": "measured",
                    "date": time.strftime("%Y-%m-%d"),
                    "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                    "load_average": f"{load:.1f}",
                    "versions": f"PyAV {version('av')}, Pillow {version('pillow')}, numpy {version('numpy')}",
                    "recording": f"{Path(root).name}: {frames.contents}",
                    "batch_size": BATCH,
                    "workers": WORKERS,
                    "frames": name,
                    "examples_per_s": f"{made[name].examples_per_s:.0f}",
                    "times_on_demand": f"{made[name].examples_per_s / made['on_demand'].examples_per_s:.1f}",
                    "cpu_ms_per_batch": f"{made[name].cpu_ms:.1f}",
                    "times_less_cpu": f"{made['on_demand'].cpu_ms / made[name].cpu_ms:.1f}",
                    "step_ms": f"{STEP_S * 1e3:.0f}",
                    "data_wait_ms": f"{sum(waits) / len(waits) * 1e3:.2f}",
                    "data_wait_ms_median": f"{sorted(waits)[len(waits) // 2] * 1e3:.2f}",
                    "waited_share": f"{sum(waits) / (sum(waits) + len(waits) * STEP_S):.4f}",
                    "decoded_once_in_s": f"{once_s:.1f}" if name == "decoded" else "",
                    "mb_on_disk": f"{frames.contents.bytes / 1e6:.1f}" if name == "decoded" else "",
                }
            )
    write_csv(HERE / "measured.csv", rows)
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items() if value != ""))
    last = rows[-1]
    print(
        f"decoded once: {last['times_on_demand']} times the examples a second of decoding on demand, on "
        f"{last['times_less_cpu']} times less CPU; with steps of {last['step_ms']} ms a run waits "
        f"{float(last['waited_share']):.2%} of its time for data"
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(RECORDING))
