"""Which of a recording's cameras is which of the model's: as data.cameras says, or guessed from their names."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sharder.data.info import Info
from sharder.errors import UserError

BASE, LEFT_WRIST, RIGHT_WRIST = MODEL_CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
WRIST_WORDS = ("wrist", "hand", "gripper")

log = logging.getLogger(__name__)


def choose_cameras(info: Info, wanted: Mapping[str, str] | None) -> dict[str, str]:
    """Model camera -> feature key, in the model's order; cameras that the recording lacks are not in it."""
    present = [key for key, feature in info.features.items() if feature.is_camera]
    if wanted is None:
        return guess_cameras(present)
    for name, key in wanted.items():
        if name not in MODEL_CAMERAS:
            raise UserError(f"data.cameras: the model has no camera {name!r}; it has {', '.join(MODEL_CAMERAS)}")
        if key not in present:
            raise UserError(
                f"data.cameras.{name}: the recording has no camera {key!r}; it has {', '.join(present) or 'none'}"
            )
    return {name: wanted[name] for name in MODEL_CAMERAS if name in wanted}


def guess_cameras(present: list[str]) -> dict[str, str]:
    """By the last part of their keys: the model's own names, then wrists by side, then any wrist, then what is left."""
    last = {key: key.rsplit(".", 1)[-1].lower() for key in present}
    wrists = [key for key in present if any(word in last[key] for word in WRIST_WORDS)]
    chosen: dict[str, str] = {}

    def take(name: str, candidates: list[str]) -> None:
        free = [key for key in candidates if key not in chosen.values()]
        if free and name not in chosen:
            chosen[name] = free[0]

    for name in MODEL_CAMERAS:
        take(name, [key for key in present if last[key] == name])
    for name, side in ((LEFT_WRIST, "left"), (RIGHT_WRIST, "right")):
        words = [pair for word in WRIST_WORDS for pair in (f"{side}_{word}", f"{word}_{side}")]
        take(name, [key for key in wrists if any(word in last[key] for word in words)])
    take(LEFT_WRIST, [key for key in wrists if "right" not in last[key]])
    take(BASE, [key for key in present if key not in wrists])
    unused = [key for key in present if key not in chosen.values()]
    if unused:
        log.info("cameras of the recording that are not used: %s", ", ".join(unused))
    return {name: chosen[name] for name in MODEL_CAMERAS if name in chosen}
