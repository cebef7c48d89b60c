"""Reads what W&B recorded offline, as `wandb sync` would: its Python package has a writer's service but no reader.

A file is a header of 7 bytes and then LevelDB's log: blocks of 32 KiB, in which a record is one piece or several, each
behind its checksum (4 bytes), length (2) and place in the record (1). A record is a protocol buffer of W&B's.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

HEADER = b":W&B\xe1\xbe\x00"
BLOCK = 2**15
PIECE = struct.Struct("<IHB")
WHOLE, LAST = 1, 4  # places at which a record ends; 2 and 3 go on


def records(file: Path) -> Iterator[Record]:
    data = file.read_bytes()
    assert data[: len(HEADER)] == HEADER
    at, record = len(HEADER), b""
    while at + PIECE.size <= len(data):
        if BLOCK - at % BLOCK < PIECE.size:  # no room for another: zeros
            at += BLOCK - at % BLOCK
            continue
        _, size, place = PIECE.unpack_from(data, at)
        record += data[at + PIECE.size : at + PIECE.size + size]
        at += PIECE.size + size
        if place in (WHOLE, LAST):
            yield Record.FromString(record)
            record = b""


def files(folder: Path) -> list[Path]:
    """Of every attempt, oldest first."""
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def rows(file: Path) -> list[dict[str, Any]]:
    """What was logged, with W&B's own step as _step."""
    found = []
    for record in records(file):
        if record.WhichOneof("record_type") == "history":
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            found.append({name: value for name, value in row.items() if name not in ("_runtime", "_timestamp")})
    return found


def run_ids(folder: Path) -> set[str]:
    return {r.run.run_id for file in files(folder) for r in records(file) if r.WhichOneof("record_type") == "run"}


def step_metric(file: Path) -> dict[str, str]:
    """Metric or pattern -> what its chart counts, as declared."""
    metrics = [r.metric for r in records(file) if r.WhichOneof("record_type") == "metric"]
    return {metric.name or metric.glob_name: metric.step_metric for metric in metrics}
