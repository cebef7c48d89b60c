"""Which of a recording's cameras is which of the model's."""

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
    chosen: dict[str, str] = {}

    def take(name: str, fits) -> None:
        keys = [key for key in present if key not in chosen.values() and fits(key.rsplit(".", 1)[-1].lower())]
        if keys and name not in chosen:
            chosen[name] = keys[0]

    for name in MODEL_CAMERAS:
        take(name, lambda last, name=name: last == name)
    for name, side in ((LEFT_WRIST, "left"), (RIGHT_WRIST, "right")):
        words = [pair for word in WRIST_WORDS for pair in (f"{side}_{word}", f"{word}_{side}")]
        take(name, lambda last, words=words: any(word in last for word in words))
    take(LEFT_WRIST, lambda last: is_wrist(last) and "right" not in last)
    take(BASE, lambda last: not is_wrist(last))
    unused = [key for key in present if key not in chosen.values()]
    if unused:
        log.info("cameras of the recording that are not used: %s", ", ".join(unused))
    return {name: chosen[name] for name in MODEL_CAMERAS if name in chosen}


def is_wrist(last: str) -> bool:
    return any(word in last for word in WRIST_WORDS)
