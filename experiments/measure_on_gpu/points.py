"""What is worth measuring on a GPU, in which order, how long each takes, and what fits into the time that is left.

Nothing here runs anything. A point is one of a preset's sweep, or one beside it; first comes one of each question, then
what is left of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from statistics import median

from omegaconf import OmegaConf

WINDOW = "profile=window"  # the trace that tells attention, and every other category, from the rest of a step
FIRST = (
    ("strong_scaling", "mesh=single", "system=published"),  # 195.6 ms on an H100, as published: is it the same step?
    ("strong_scaling", "mesh=single", "system=sharder"),  # and what is left of it
    ("flash_end_to_end", "attn=xla", "remat=full"),  # 177.61 ms as published, where the prediction misses most
    ("step_breakdown", "system=published", WINDOW),  # with AdamW, 211.9 ms as published
    *(
        ("strong_scaling", f"mesh={mesh}", f"system={one}")
        for mesh in ("fsdp4", "fsdp2")
        for one in ("published", "sharder")
    ),
    ("attention_length", "attn=flash", "model.prompt_tokens=7373", WINDOW),
    ("attention_length", "attn=xla", "model.prompt_tokens=7373", WINDOW),
    ("step_breakdown", "system=sharder", WINDOW),
)
BESIDE = tuple(  # what the sweep of flash_end_to_end leaves out of every attn and remat
    ("flash_end_to_end", f"attn={attn}", f"remat={remat}")
    for remat in ("dots", "none")
    for attn in ("flash", "tiles", "xla", "naive")
)
REST: tuple[str | tuple[str, ...], ...] = (
    "flash_end_to_end",
    *BESIDE,
    "attention_length",
    "weak_scaling",
    "overlap",
    "speed",
    "layouts",
    "memory",
)
TRACED = ("attention_length", "step_breakdown")  # presets whose figure needs the window

# Seconds, a guess of what pi0 takes on one GPU; what was measured before corrects all of them by the same factor.
START_S, COMPILE_S, COMPILE_UNROLLED_S, STEPS_S, WINDOW_S = 45.0, 60.0, 180.0, 15.0, 15.0
SMALL = 0.2  # of it, for a model that is not of pi0's size
FULL_SIZE = ("pi0", "pi05", "pi0_lora")

FINISHED, FAILED, CUT_OFF = "finished", "failed", "cut off"


@dataclass(frozen=True)
class Point:
    preset: str
    overrides: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.preset, *self.overrides))

    @property
    def devices(self) -> int:
        return next(
            (mesh_size(one[5:]) for one in (*self.overrides, *fixed(self.preset)) if one.startswith("mesh=")), 1
        )

    @property
    def guess_s(self) -> float:
        is_unrolled = {"system=sharder", "work=unrolled"} & set(self.overrides)
        return (
            START_S
            + (COMPILE_UNROLLED_S if is_unrolled else COMPILE_S)
            + STEPS_S
            + (WINDOW_S if WINDOW in self.overrides else 0)
        )


@dataclass(frozen=True)
class Tried:
    """What became of a point before."""

    ended: str  # FINISHED | FAILED | CUT_OFF
    seconds: float | None  # None: nobody wrote it down


def in_order(devices: int) -> list[Point]:
    """Every point that a machine with so many devices can measure, the worthiest first, each once."""
    told = [Point(preset, tuple(overrides)) for preset, *overrides in FIRST]
    for one in REST:
        told += sweep(one) if isinstance(one, str) else [Point(one[0], one[1:])]
    once: dict[tuple[str, frozenset[str]], Point] = {}
    for point in told:
        once.setdefault((point.preset, frozenset(point.overrides)), point)
    return [point for point in once.values() if point.devices <= devices]


def sweep(preset: str) -> list[Point]:
    """The points of a preset's own sweep."""
    values = [[f"{key}={value}" for value in str(text).split(",")] for key, text in parameters(preset).items()]
    window = (WINDOW,) if preset in TRACED else ()
    return [Point(preset, (*overrides, *window)) for overrides in product(*values)]


def scale(points: Sequence[Point], tried: Mapping[Point, Tried], model: str) -> float:
    """By what the guesses are to be multiplied: as the points that finished say, else as the model's size does."""
    told = [(point, tried[point].seconds) for point in points if _ended(tried, point) == FINISHED]
    known = [seconds / point.guess_s for point, seconds in told if seconds is not None]
    return median(known) if known else 1.0 if model in FULL_SIZE else SMALL


def expected_s(point: Point, tried: Mapping[Point, Tried], factor: float) -> float:
    """One that was cut off took longer than that."""
    least = tried[point].seconds if _ended(tried, point) == CUT_OFF else None
    return max(factor * point.guess_s, 1.2 * (least or 0.0))


def to_do(points: Sequence[Point], tried: Mapping[Point, Tried]) -> list[Point]:
    """What is not finished; what failed before comes last, for it may fail again."""
    left = [point for point in points if _ended(tried, point) != FINISHED]
    return sorted(left, key=lambda point: _ended(tried, point) == FAILED)


def fitting(
    left: Sequence[Point], tried: Mapping[Point, Tried], factor: float, left_s: float
) -> Iterator[tuple[Point, float, bool]]:
    """(point, seconds it is expected to take, does that fit) up to the first that fits."""
    for point in left:
        seconds = expected_s(point, tried, factor)
        yield point, seconds, seconds <= left_s
        if seconds <= left_s:
            return


def _ended(tried: Mapping[Point, Tried], point: Point) -> str | None:
    return tried[point].ended if point in tried else None


@cache
def parameters(preset: str) -> dict[str, str]:
    """Of its sweep: key -> values, with commas."""
    return dict(_read("experiment", preset).hydra.sweeper.params)


@cache
def fixed(preset: str) -> tuple[str, ...]:
    """The groups that it sets: group=option."""
    told = [dict(one) for one in _read("experiment", preset).defaults]
    return tuple(f"{key.removeprefix('override /')}={option}" for one in told for key, option in one.items())


@cache
def mesh_size(name: str) -> int:
    mesh = _read("mesh", name)
    return int(mesh.batch * mesh.fsdp)


@cache
def hardware_named(device_kind: str) -> str | None:
    """The option of `hardware` that insists on these devices; None: there is none."""
    options = sorted(
        entry.name.removesuffix(".yaml")
        for entry in files("sharder.conf").joinpath("hardware").iterdir()
        if entry.name.endswith(".yaml")
    )
    return next((name for name in options if _read("hardware", name).device_kind == device_kind), None)


def _read(group: str, name: str):  # type: ignore[no-untyped-def]
    return OmegaConf.create(files("sharder.conf").joinpath(group, f"{name}.yaml").read_text())
