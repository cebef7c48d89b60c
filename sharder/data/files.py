"""Reading the files of a recording, whatever is in them: a UserError that names the file, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sharder.errors import UserError


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turns the failures of reading `path` as a `what` into a UserError."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path} is missing; copy the recording again") from None
    except (OSError, ValueError, KeyError, RecursionError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"{path} cannot be read as {what} ({reason[:200]}); copy the recording again") from None


def read_json(path: Path) -> Any:
    with reading(path, "JSON"):
        return json.loads(path.read_text(encoding="utf-8"))


def read_json_lines(path: Path) -> list[Any]:
    with reading(path, "JSON lines"):
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def read_columns(path: Path, columns: Sequence[str]) -> pa.Table:
    """Those columns of a parquet file, on the calling thread; struct columns come whole."""
    with reading(path, "parquet"), pq.ParquetFile(path) as file:
        present = file.schema_arrow.names
        missing = [name for name in columns if name not in present]
        if missing:
            raise UserError(f"{path} has no column {', '.join(missing)}; its columns are {', '.join(present)}")
        return file.read(columns=list(columns), use_threads=False)


def mapped(path: Path) -> np.ndarray:
    """A .npy file mapped into memory, read-only; as a plain array, which is indexed faster than numpy's memmap."""
    return np.asarray(np.load(path, mmap_mode="r"))


def entry(record: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """`record[key]`, checked to be there and of that kind (true and false are not numbers)."""
    names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
    if not isinstance(record, dict):
        raise UserError(f"{where} is {shortened(record)}, and should be an object with {key!r}")
    if key not in record:
        raise UserError(f"{where} has no {key!r} ({names}); what it has is {shortened(', '.join(map(str, record)))}")
    value = record[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{where}: {key!r} is {shortened(value)}, and should be {names}")
    return value


def shortened(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
