"""Protobuf's wire format, read from one array of bytes: one message at a time, or many of a kind together.

A message is a row of fields. A field starts with a number that holds the field number and the wire type; then comes
either a number, or bytes with their length in front. Where a field starts is known only once the one before it was
read, so a loop over fields is what reading costs. `columns` turns it around: numpy reads the first field of all the
messages at once, then the second of those that have one, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5  # wire types
LONGEST_VARINT = 10  # bytes


class Malformed(Exception):
    """The bytes are not the message they should be: a file that was cut, or another kind of file."""


class Field(NamedTuple):
    number: int
    wire: int
    value: int  # of a number; of bytes, where they start
    end: int  # of bytes, where they end


class Columns(NamedTuple):
    """One field of each message that has a further one: K of them."""

    row: np.ndarray  # int64 [K] which message
    number: np.ndarray  # int64 [K]
    wire: np.ndarray  # int64 [K]
    value: np.ndarray  # int64 [K] as in Field
    end: np.ndarray  # int64 [K] as in Field


class Wire:
    def __init__(self, data: np.ndarray) -> None:
        self.data = data  # uint8 [bytes of the file]
        self.bytes = data.data  # the same; quicker than numpy for one byte at a time

    def fields(self, at: int, end: int) -> Iterator[Field]:
        while at < end:
            part, at = self.field(at, end)
            yield part

    def parts(self, message: Field) -> Iterator[Field]:
        return self.fields(message.value, message.end)

    def field(self, at: int, end: int) -> tuple[Field, int]:
        """The field that starts here, and where the next one does."""
        tag, at = self.varint(at, end)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, after = self.varint(at, end)
            part = Field(number, wire, value - (1 << 64) if value >> 63 else value, after)
        elif wire == BYTES:
            length, at = self.varint(at, end)
            after = at + length
            part = Field(number, wire, at, after)
        elif wire in (EIGHT_BYTES, FOUR_BYTES):
            after = at + (8 if wire == EIGHT_BYTES else 4)
            part = Field(number, wire, at, after)
        else:
            raise Malformed(f"wire type {wire} before byte {at}")
        if after > end:
            raise Malformed(f"a field ends at byte {after}, what it is in at {end}")
        return part, after

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """The number that starts here, unsigned, and where it ends."""
        value = 0
        for index in range(LONGEST_VARINT):
            if at + index >= end:
                raise Malformed(f"a number runs past byte {end}")
            byte = self.bytes[at + index]
            value |= (byte & 127) << 7 * index
            if byte < 128:
                return value & 0xFFFFFFFFFFFFFFFF, at + index + 1
        raise Malformed(f"a number of more than {LONGEST_VARINT} bytes at {at}")

    def text(self, part: Field) -> str:
        return self.data[part.value : part.end].tobytes().decode("utf-8", "replace") if part.wire == BYTES else ""

    def map_entry(self, entry: Field) -> tuple[int, Field]:
        """A protobuf map is a repeated message of key (1) and value (2); the values here are messages."""
        key, value = 0, Field(2, BYTES, entry.end, entry.end)
        for part in self.parts(entry):
            if part.number == 1:
                key = part.value
            elif part.number == 2 and part.wire == BYTES:
                value = part
        return key, value

    def columns(self, starts: np.ndarray, ends: np.ndarray) -> Iterator[Columns]:
        """The fields of many messages, whose bytes lie from `starts` to `ends` (int64 each)."""
        row, at, end = np.arange(len(starts)), starts, ends
        while True:
            unread = at < end
            if not unread.all():
                row, at, end = row[unread], at[unread], end[unread]
            if not len(row):
                return
            tag, at = self.varints(at)
            wire = tag & 7
            numeric, sized = wire == VARINT, wire == BYTES
            value, after = self.varints(at)  # read for all, right for the numeric
            if not numeric.all():
                fixed = np.where(wire == EIGHT_BYTES, 8, np.where(wire == FOUR_BYTES, 4, -1))  # -1: no wire type
                length = np.where(sized, value, fixed)
                bytes_at = np.where(sized, after, at)
                value = np.where(numeric, value, bytes_at)
                after = np.where(numeric, after, bytes_at + length)
            if (after > end).any() or (after < at).any():
                raise Malformed("an event or one of its stats has a field that does not fit")
            yield Columns(row, tag >> 3, wire, value, after)
            at = after

    def varints(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers that start at these bytes, int64 [K], and where each ends.

        What lies past the end of the file reads as its last byte; `columns` finds that it does not fit.
        """
        last = len(self.data) - 1
        byte = self.data[np.minimum(at, last)]
        value = (byte & 127).astype(np.int64)
        after = at + 1
        more = np.flatnonzero(byte >= 128)
        for index in range(1, LONGEST_VARINT):
            if not len(more):
                return value, after
            byte = self.data[np.minimum(at[more] + index, last)]
            value[more] |= (byte & 127).astype(np.int64) << 7 * index
            after[more] += 1
            more = more[byte >= 128]
        return value, after
