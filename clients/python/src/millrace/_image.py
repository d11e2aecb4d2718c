"""From the image of a batch in memory to its tensors, without a copy."""

from __future__ import annotations

import ctypes
import itertools
import struct
from typing import Any, NamedTuple

import pyarrow as pa

from millrace._batch import Batch, Meta
from millrace._convert import Converter
from millrace._ring import Memory
from millrace._wire import KEY_COLUMN, META_COLUMNS, SAMPLE_COLUMN, VALID_COLUMN, Header
from millrace.errors import BadDataError

_PAIR = 16  # bytes of a pair of numbers in the table


class Column(NamedTuple):
    """A column of the output and where its entries in the table are."""

    name: str
    kind: Any
    first: int
    pairs: int
    dtype: str | None
    """Element type of a column that is one run of numbers, else None."""
    shape: tuple[int, ...]


class Place(NamedTuple):
    """A column that is one run of numbers: where it lies."""

    name: str
    dtype: Any
    length: int
    offset: int
    shape: tuple[int, ...]


class Imager:
    """Makes batches of images.

    Parameters
    ----------
    schema : bytes
        Schema of the batches, an IPC message.
    converter : Converter
        Makes the columns that are not one run of numbers.
    """

    def __init__(self, schema: bytes, converter: Converter) -> None:
        self._converter = converter
        self._columns: list[Column] = []
        self._meta: dict[str, int] = {}
        at = 0
        for field in pa.ipc.read_schema(pa.BufferReader(schema)):
            pairs = _pairs(field.type)
            if field.name in META_COLUMNS:
                self._meta[field.name] = at
            else:
                dtype, shape = _flat(field.type, converter.dtype(field.name, _element(field.type)))
                self._columns.append(Column(field.name, field.type, at, pairs, dtype, shape))
            at += pairs
        self._numbers = struct.Struct(f"<{2 * at}Q")
        self._outputs = min(self._meta.values()) * _PAIR
        self._plans: dict[bytes, tuple[list[Place], list[Column]]] = {}
        self._tensor = converter.run
        self._pin = converter.pin

    def batch(self, memory: Memory, table: bytes, header: Header, cursor: str) -> Batch:
        """Make a batch whose tensors lie in memory that the caller has, and keep it alive."""
        numbers = self._numbers.unpack(table)
        key = table[: self._outputs]
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(numbers, memory)
            if len(self._plans) < 256:
                self._plans[key] = plan
        places, others = plan
        owner, make, base = memory.owner, self._tensor, memory.base
        fields: dict[str, Any] = {}
        for name, dtype, count, offset, shape in places:
            fields[name] = make(owner, dtype, count, offset - base, shape)
        if self._pin is not None:
            fields = {name: self._pin(tensor) for name, tensor in fields.items()}
        for column in others:
            array = _array(column.kind, numbers, column.first, memory)[0]
            fields[column.name] = self._converter.column(column.name, array)
        if others:
            fields = {c.name: fields[c.name] for c in self._columns}
        return Batch(fields, self._meta_of(memory, numbers, header, cursor))

    def _plan(self, numbers: tuple[int, ...], memory: Memory) -> tuple[list[Place], list[Column]]:
        places, others = [], []
        first, limit = memory.base, memory.base + len(memory.view)
        for column in self._columns:
            if column.dtype is None:
                others.append(column)
                continue
            rows, nulls = numbers[2 * column.first], numbers[2 * column.first + 1]
            offset, size = numbers[2 * (column.first + column.pairs) - 2 : 2 * (column.first + column.pairs)]
            if nulls:
                others.append(column)  # which says where a value is missing
                continue
            count = rows
            for side in column.shape:
                count *= side
            dtype, width = self._converter.element(column.dtype)
            if (size and offset < first) or offset + size > limit or count * width > size:
                raise BadDataError(f"column {column.name!r} of a batch in memory leads beyond its end")
            places.append(Place(column.name, dtype, count, offset, (rows, *column.shape)))
        return places, others

    def _meta_of(self, memory: Memory, numbers: tuple[int, ...], header: Header, cursor: str) -> Meta:
        view, base = memory.view, memory.base

        def part(column: str, number: int) -> bytes:
            at = 2 * (self._meta[column] + number)
            offset, size = numbers[at], numbers[at + 1]
            if size and not base <= offset <= base + len(view) - size:
                raise BadDataError(f"column {column!r} of a batch in memory leads beyond its end")
            return bytes(view[offset - base : offset - base + size])

        rows = header.rows
        return Meta(
            epoch=header.epoch,
            step=header.step,
            part=header.part,
            rows=rows,
            valid_rows=header.valid_rows,
            cursor=cursor,
            keys=Keys(part(KEY_COLUMN, 2), part(KEY_COLUMN, 3), rows),
            samples=part(SAMPLE_COLUMN, 2),
            valid=b"\1" * rows if header.valid_rows == rows else _spread(part(VALID_COLUMN, 2), rows),
            tensor=self._converter.vector,
        )


class Keys:
    """Keys of a batch, which are made into text when they are asked for."""

    __slots__ = ("_offsets", "_rows", "_text")

    def __init__(self, offsets: bytes, text: bytes, rows: int) -> None:
        self._offsets = offsets
        self._text = text
        self._rows = rows

    def to_pylist(self) -> list[str]:
        """Return the keys."""
        ends = struct.unpack_from(f"<{self._rows + 1}i", self._offsets)
        return [self._text[a:b].decode(errors="replace") for a, b in itertools.pairwise(ends)]


def _spread(bits: bytes, count: int) -> bytes:
    return bytes((bits[i >> 3] >> (i & 7)) & 1 for i in range(count))


def _element(kind: Any) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return _element(kind.storage_type)
    return _element(kind.value_type) if pa.types.is_fixed_size_list(kind) else kind


def _flat(kind: Any, dtype: str) -> tuple[str | None, tuple[int, ...]]:
    """Give the element type and the shape of a row of a column that is one run of numbers."""
    if isinstance(kind, pa.FixedShapeTensorType):
        flat, shape = _is_run(kind.value_type), tuple(kind.shape)
    elif pa.types.is_fixed_size_list(kind):
        flat, shape = _is_run(kind.value_type), (kind.list_size,)
    else:
        flat, shape = _is_run(kind), ()
    return (dtype, shape) if flat else (None, ())


def _is_run(kind: Any) -> bool:
    return (bool(pa.types.is_integer(kind)) or bool(pa.types.is_floating(kind))) and kind.bit_width >= 8


def _pairs(kind: Any) -> int:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _pairs(kind.storage_type)
    if types.is_struct(kind):
        return 2 + sum(_pairs(kind.field(i).type) for i in range(kind.num_fields))
    if types.is_fixed_size_list(kind):
        return 2 + _pairs(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return 3 + _pairs(kind.value_type)
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return 4
    return 3


def _array(kind: Any, numbers: tuple[int, ...], at: int, memory: Memory) -> tuple[Any, int]:
    """Make the Arrow array whose node is at a place of the table, and say where the next one is."""
    if isinstance(kind, pa.BaseExtensionType):
        storage, after = _array(kind.storage_type, numbers, at, memory)
        return pa.ExtensionArray.from_storage(kind, storage), after
    types = pa.types
    length, nulls = numbers[2 * at], numbers[2 * at + 1]
    first, limit = memory.base, memory.base + len(memory.view)
    nested = types.is_struct(kind) or types.is_fixed_size_list(kind)
    count = 1 if nested else 2
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        count = 3
    buffers = []
    for i in range(at + 1, at + 1 + count):
        offset, size = numbers[2 * i], numbers[2 * i + 1]
        if size and not first <= offset <= limit - size:
            raise BadDataError("a column of a batch in memory leads beyond its end")
        absent = size == 0 and i == at + 1
        buffers.append(None if absent else pa.foreign_buffer(memory.address + max(0, offset - first), size, memory.owner))
    after, children = at + 1 + count, []
    if types.is_struct(kind):
        inner = [kind.field(i).type for i in range(kind.num_fields)]
    elif types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        inner = [kind.value_type]
    else:
        inner = []
    for each in inner:
        child, after = _array(each, numbers, after, memory)
        children.append(child)
    array = pa.Array.from_buffers(kind, length, buffers, nulls, 0, children)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadDataError(f"a column of a batch in memory is damaged: {error}") from None
    return array, after


def own_memory(size: int, base: int = 0) -> Memory:
    """Make memory of the caller's own, which holds a slot's bytes from ``base`` on."""
    buffer = pa.allocate_buffer(size)
    owner: Any = (ctypes.c_uint8 * size).from_address(buffer.address)
    owner.buffer = buffer
    return Memory(owner, buffer.address, memoryview(owner).cast("B"), base)


def copied(memory: Memory, begin: int, end: int) -> Memory:
    """Copy a part of what lies in memory to memory of the caller's own. Other threads run meanwhile."""
    fresh = own_memory(end - begin, begin)
    ctypes.memmove(fresh.address, memory.address + begin, end - begin)
    return fresh
