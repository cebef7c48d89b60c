"""A handover for tests of composing."""

from pathlib import Path

from sharder.config import Config


class Handed:
    """A handover that starts nothing and remembers what it was given."""

    def __init__(self, codes: tuple[int, ...] = (0,)) -> None:
        self.runs: list[tuple[Path, Config]] = []
        self._codes = codes

    def __call__(self, folder: Path, config: Config, lock: int) -> int:
        self.runs.append((folder, config))
        return self._codes[min(len(self.runs), len(self._codes)) - 1]
