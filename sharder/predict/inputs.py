"""What of a train step only the data decide: its cameras, and the sizes that the config leaves to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sharder.config import Config
from sharder.data.dataset import open_dataset
from sharder.errors import UserError


@dataclass(frozen=True)
class Inputs:
    config: Config  # with model.action_dim and model.prompt_tokens filled in
    cameras: tuple[str, ...]
    said: str | None = None  # where they come from, where that is not the recording


def read_inputs(config: Config) -> Inputs:
    """From the recording, as a run does. Where that is not here, from the config alone, if that says everything."""
    root = config.data.root
    if root is None or Path(root).exists():
        data = open_dataset(config)
        return Inputs(data.config, tuple(data.recording.cameras))
    for key in ("action_dim", "prompt_tokens"):
        if getattr(config.model, key) == 0:
            raise UserError(
                f"model.{key}: found 0, which is for the data to say, but data.root={root} is not here; set "
                f"model.{key}=..., or data.root=<folder>"
            )
    cameras = config.data.cameras.chosen_or_all()
    chosen = "as data.cameras names them" if config.data.cameras.chosen() else "all there can be"
    said = f"data.root={root} is not here; cameras: {', '.join(cameras)}, {chosen}"
    return Inputs(config, cameras, said)
