"""Which process the others wait for, step after step.

The time of a step says nothing about it: collectives make all wait for the slowest, and all look slow. But all meet on
the host before a step, and who comes last waits least. Each tells the others how long it waited at the meeting before,
so no clocks are compared.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from statistics import fmean, median

WINDOW = 16  # steps that are looked at
PERSISTS = 0.75  # share of them in which the same process came last
WORTH_A_WORD = 0.05  # share of a step's time that the others wait for it, and
WORTH_A_WORD_S = 0.005  # seconds


class Straggler:
    def __init__(self) -> None:
        self._last: deque[tuple[int, float]] = deque(maxlen=WINDOW)  # (process, seconds the others waited for it)
        self.named: int | None = None

    def look(self, waited_s: Sequence[float], step_s: float) -> str | None:
        """After a meeting: how long each process waited at it, in order of process. A line when someone is to be named
        who was not, or no one any more."""
        last = min(range(len(waited_s)), key=waited_s.__getitem__)
        others = [seconds for process, seconds in enumerate(waited_s) if process != last]
        self._last.append((last, median(others) - waited_s[last]))
        if len(self._last) < WINDOW:
            return None
        process, times = Counter(process for process, _ in self._last).most_common(1)[0]
        by_s = fmean(seconds for other, seconds in self._last if other == process)
        persists = times >= PERSISTS * WINDOW and by_s > max(WORTH_A_WORD_S, WORTH_A_WORD * step_s)
        before, self.named = self.named, process if persists else None
        if self.named == before:
            return None
        if self.named is None:
            return f"process {before} no longer holds the others up"
        return (
            f"process {process} comes last to {times} of the last {WINDOW} steps, {by_s * 1e3:.0f} ms after the "
            "others: look at its machine, its data and what else runs there"
        )
