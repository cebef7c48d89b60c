"""The file a profiler session leaves (`*.xplane.pb`), read without jax and without the protobuf library.

The file is one protobuf message, XSpace, defined by `xplane.proto` of XLA. What is read of it, with the field numbers:

    XSpace          1 planes, 2 errors, 3 warnings
    XPlane          2 name, 3 lines, 4 event metadata by id, 5 stat metadata by id
    XLine           2 name, 3 timestamp_ns, 4 events
    XEvent          1 metadata id, 2 offset_ps from the line's timestamp, 3 duration_ps, 4 stats
    XStat           1 metadata id, then one of 3 uint64, 4 int64, 5 text, 7 a text kept as the name of a stat metadata
    XEventMetadata  2 name, 5 stats that hold for all its events
    XStatMetadata   2 name

Millions of events are not turned into objects: each line becomes a few arrays. `jax.profiler.ProfileData` reads the
same file, but it needs jax, holds everything as C++ objects, and hands out one Python object an event and a stat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sharder.errors import UserError
from sharder.measure.wire import BYTES, Field, Malformed, Wire

MISSING = np.iinfo(np.int64).min  # an event without that stat
CHUNK = 1 << 17  # events read together; bounds the memory that reading takes beyond its result
EVENT_TAG = 4 << 3 | BYTES
PICOSECONDS = 1000  # in a nanosecond


class Names:
    """Texts and their ids. Id 0 is the empty text."""

    def __init__(self) -> None:
        self.texts = [""]
        self._ids = {"": 0}

    def id(self, text: str) -> int:
        found = self._ids.get(text)
        if found is None:
            found = self._ids[text] = len(self.texts)
            self.texts.append(text)
        return found

    def find(self, text: str) -> int:
        """-1 for a text that is not among them."""
        return self._ids.get(text, -1)

    def __getitem__(self, index: int) -> str:
        return self.texts[index]


@dataclass(frozen=True)
class Line:
    """The events of one thread or stream. Times count from the start of the profiling session."""

    name: str
    start_ns: np.ndarray = field(repr=False)  # int64 [E]
    end_ns: np.ndarray = field(repr=False)  # int64 [E]
    event: np.ndarray = field(repr=False)  # int32 [E] id of the event's name
    # int64 [E] each: the number (modulo 2**64 if unsigned), or the id of the text, or MISSING
    stats: dict[str, np.ndarray] = field(repr=False)

    def stat(self, name: str) -> np.ndarray:
        """int64 [E], all MISSING where no event has it."""
        return self.stats.get(name, np.full(len(self.event), MISSING))


@dataclass(frozen=True)
class Plane:
    name: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class XSpace:
    planes: tuple[Plane, ...]
    complaints: tuple[str, ...]  # the profiler's own errors and warnings, such as events that it dropped
    names: Names = field(repr=False)


def read_xspace(path: Path, texts: Iterable[str], numbers: Iterable[str]) -> XSpace:
    """All planes of the file; of the stats those whose names are in `texts` and `numbers`, by what they hold."""
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise UserError(f"trace: {path} cannot be read ({error.strerror}); give a *.xplane.pb file") from error
    try:
        return _Reader(Wire(data), frozenset(texts), frozenset(numbers)).space()
    except Malformed as error:
        raise UserError(
            f"trace: {path} ({len(data)} bytes) is cut short or is not a profiler's .xplane.pb ({error}); profile again"
        ) from error


class _EventMetadata(NamedTuple):
    name: int
    stats: dict[str, int]


class _Events(NamedTuple):
    """A chunk of a line."""

    kind: np.ndarray  # int64 [E] metadata id
    offset_ps: np.ndarray  # int64 [E], MISSING for a count of events
    duration_ps: np.ndarray  # int64 [E]
    stats: dict[str, np.ndarray]


class _Reader:
    def __init__(self, wire: Wire, texts: frozenset[str], numbers: frozenset[str]) -> None:
        self.wire = wire
        self.wanted_texts = texts
        self.wanted_numbers = numbers
        self.names = Names()

    def space(self) -> XSpace:
        planes, complaints = [], []
        for part in self.wire.fields(0, len(self.wire.data)):
            if part.number == 1:
                planes.append(self.plane(part))
            elif part.number in (2, 3):
                complaints.append(self.wire.text(part))
        if not planes:
            raise Malformed("it has no planes")
        return XSpace(tuple(planes), tuple(complaints), self.names)

    def plane(self, plane: Field) -> Plane:
        name, lines, event_parts, stat_names = "", [], [], {}
        for part in self.wire.parts(plane):
            if part.number == 2:
                name = self.wire.text(part)
            elif part.number == 3:
                lines.append(part)
            elif part.number == 4:
                event_parts.append(part)
            elif part.number == 5:
                key, value = self.wire.map_entry(part)
                stat_names[key] = next(
                    (self.wire.text(item) for item in self.wire.parts(value) if item.number == 2), ""
                )
        kinds = _Stats(self, stat_names)
        events = dict(self.event_metadata(part, kinds) for part in event_parts)
        return Plane(name, tuple(self.line(line, events, kinds) for line in lines))

    def event_metadata(self, entry: Field, kinds: _Stats) -> tuple[int, _EventMetadata]:
        key, value = self.wire.map_entry(entry)
        name, ranges = 0, []
        for part in self.wire.parts(value):
            if part.number == 2:
                name = self.names.id(self.wire.text(part))
            elif part.number == 5:
                ranges.append((part.value, part.end))
        stats: dict[str, int] = {}
        if ranges:
            starts, ends = np.array(ranges, np.int64).T
            for stat, _, values in kinds.read(np.zeros(len(ranges), np.int64), starts, ends):
                stats[stat] = int(values[0])
        return key, _EventMetadata(name, stats)

    def line(self, line: Field, metadata: dict[int, _EventMetadata], kinds: _Stats) -> Line:
        name, timestamp_ns, chunks = "", 0, []
        for found in self.line_parts(line):
            if not isinstance(found, Field):
                chunks.append(self.events(*found, kinds))
            elif found.number == 2:
                name = self.wire.text(found)
            elif found.number == 3:
                timestamp_ns = found.value
        if not chunks:
            none = np.zeros(0, np.int64)
            return Line(name, none, none, none.astype(np.int32), {})
        kind_of_event, offset_ps, duration_ps = (np.concatenate(parts) for parts in list(zip(*chunks, strict=True))[:3])
        stats = _joined([(len(chunk.kind), chunk.stats) for chunk in chunks])
        keys, which = np.unique(kind_of_event, return_inverse=True)
        found_kinds = [metadata.get(int(key), _EventMetadata(0, {})) for key in keys]
        event = np.array([kind.name for kind in found_kinds], np.int32)[which]
        for stat in {stat for kind in found_kinds for stat in kind.stats}:
            of_kind = np.array([kind.stats.get(stat, MISSING) for kind in found_kinds], np.int64)[which]
            own = stats.get(stat, of_kind)
            stats[stat] = np.where(own == MISSING, of_kind, own)
        # Both ends are rounded down alike, so what touched still touches and what was nested still is.
        start_ns = timestamp_ns + offset_ps // PICOSECONDS
        end_ns = timestamp_ns + (offset_ps + duration_ps) // PICOSECONDS
        placed = offset_ps != MISSING  # the rest are only counts of events, without a place in time
        columns = {stat: column[placed] for stat, column in stats.items()}
        return Line(name, start_ns[placed], end_ns[placed], event[placed], columns)

    def line_parts(self, line: Field) -> Iterator[Field | tuple[np.ndarray, np.ndarray]]:
        """The fields of a line; its events as starts and ends, a chunk at a time."""
        data, at, end = self.wire.bytes, line.value, line.end
        starts: list[int] = []
        ends: list[int] = []
        while at < end:
            if data[at] == EVENT_TAG and at + 1 < end:
                length, at = data[at + 1], at + 2
                if length >= 128:
                    length, at = self.wire.varint(at - 1, end)
                starts.append(at)
                at += length
                ends.append(at)
                if len(starts) == CHUNK:
                    yield np.array(starts, np.int64), np.array(ends, np.int64)
                    starts, ends = [], []
            else:
                part, at = self.wire.field(at, end)
                yield part
        if at != end:
            raise Malformed(f"an event ends at byte {at}, its line at {end}")
        if starts:
            yield np.array(starts, np.int64), np.array(ends, np.int64)

    def events(self, starts: np.ndarray, ends: np.ndarray, kinds: _Stats) -> _Events:
        """The events in these bytes."""
        kind, duration_ps = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
        offset_ps = np.full(len(starts), MISSING)
        owners, stat_starts, stat_ends = [], [], []
        for found in self.wire.columns(starts, ends):
            for number, column in ((1, kind), (2, offset_ps), (3, duration_ps)):
                mine = found.number == number
                column[found.row[mine]] = found.value[mine]
            mine = (found.number == 4) & (found.wire == BYTES)
            owners.append(found.row[mine])
            stat_starts.append(found.value[mine])
            stat_ends.append(found.end[mine])
        stats: dict[str, np.ndarray] = {}
        if owners:
            ranges = (np.concatenate(parts) for parts in (owners, stat_starts, stat_ends))
            for stat, rows, values in kinds.read(*ranges):
                stats.setdefault(stat, np.full(len(starts), MISSING))[rows] = values
        return _Events(kind, offset_ps, duration_ps, stats)


class _Stats:
    """How the stats of one plane are read."""

    def __init__(self, reader: _Reader, metadata: dict[int, str]) -> None:
        self.wire = reader.wire
        self.names = reader.names
        self.metadata = metadata
        self.texts = np.array([key for key, name in metadata.items() if name in reader.wanted_texts], np.int64)
        self.numbers = np.array([key for key, name in metadata.items() if name in reader.wanted_numbers], np.int64)

    def read(
        self, owner: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Name, owners and values of the stats in these bytes, a name at a time.

        The metadata id comes first, as protobuf writes fields in the order of their numbers.
        """
        key = np.zeros(len(starts), np.int64)
        value = np.full(len(starts), MISSING)
        for found in self.wire.columns(starts, ends):
            mine = found.number == 1
            key[found.row[mine]] = found.value[mine]
            is_text, is_number = np.isin(key[found.row], self.texts), np.isin(key[found.row], self.numbers)
            mine = is_number & ((found.number == 3) | (found.number == 4))
            value[found.row[mine]] = found.value[mine]
            mine = is_text & (found.number == 7)
            value[found.row[mine]] = self.referred(found.value[mine])
            mine = is_text & (found.number == 5) & (found.wire == BYTES)
            value[found.row[mine]] = self.spelt(found.value[mine], found.end[mine])
        for each in (*self.texts.tolist(), *self.numbers.tolist()):
            rows = (key == each) & (value != MISSING)
            if rows.any():
                yield self.metadata[each], owner[rows], value[rows]

    def referred(self, keys: np.ndarray) -> np.ndarray:
        unique, which = np.unique(keys, return_inverse=True)
        return np.array([self.names.id(self.metadata.get(int(key), "")) for key in unique], np.int64)[which]

    def spelt(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        known: dict[bytes, int] = {}
        values = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            raw = bytes(self.wire.bytes[start:end])
            if raw not in known:
                known[raw] = self.names.id(raw.decode("utf-8", "replace"))
            values.append(known[raw])
        return np.array(values, np.int64)


def _joined(chunks: list[tuple[int, dict[str, np.ndarray]]]) -> dict[str, np.ndarray]:
    """The columns of all chunks (events, columns by stat), one after another."""
    names = {name for _, columns in chunks for name in columns}
    return {
        name: np.concatenate([columns.get(name, np.full(count, MISSING)) for count, columns in chunks])
        for name in names
    }
