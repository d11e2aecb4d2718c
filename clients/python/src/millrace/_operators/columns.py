"""Columns of rows: from shared memory to values, and back."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

from millrace._operators.link import Inbox, Outbox
from millrace._operators.modules import numpy

KEEP = object()
"""Stands for a value that the function has not touched."""


class Field(NamedTuple):
    """Name and type of a column."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    made: bool
    """Whether the function has to make it."""

    @classmethod
    def read(cls, frame: dict[str, Any]) -> Field:
        """Read what the worker says."""
        return cls(frame["name"], frame["kind"], frame["dtype"], tuple(frame["shape"]), frame["made"])


def offsets(inbox: Inbox, extent: list[int]) -> list[int]:
    """Read where values begin, and the last ends."""
    return inbox.view(extent).cast("q").tolist()


class Input:
    """A column of rows that came.

    Parameters
    ----------
    field : Field
        Its type.
    inbox : Inbox
        The memory that it is in.
    extents : list
        Its buffers.
    rows : int
        How many values it has.
    """

    def __init__(self, field: Field, inbox: Inbox, extents: list[list[int]], rows: int) -> None:
        self.field = field
        self.rows = rows
        self._data = inbox.view(extents[-1])
        self._offsets: list[int] = []
        self._numbers: Any = None
        kind = field.kind
        if kind in ("bytes", "text", "image"):
            self._offsets = offsets(inbox, extents[-2])
        if kind == "image":
            self._shapes = inbox.view(extents[0]).cast("i").tolist()
        if kind in ("int64", "float64"):
            self._numbers = self._data.cast("q" if kind == "int64" else "d")
        if kind == "tensor":
            self._numbers = numpy("tensors").frombuffer(self._data, dtype=element(field)).reshape(rows, *field.shape)

    def value(self, row: int) -> Any:
        """Return the value of a row: bytes, str, int, float, or an array that cannot be written to."""
        kind = self.field.kind
        if self._numbers is not None:
            return self._numbers[row, ...] if kind == "tensor" else self._numbers[row]
        piece = self._data[self._offsets[row] : self._offsets[row + 1]]
        if kind == "text":
            return str(piece, "utf-8")
        if kind == "bytes":
            return bytes(piece)
        return numpy("images").frombuffer(piece, dtype=element(self.field)).reshape(self._shapes[3 * row : 3 * row + 3])

    def array(self) -> Any:
        """Return all values as an array: of objects where they are text, bytes or images."""
        np = numpy("batches")
        if self.field.kind == "tensor":
            return self._numbers
        if self._numbers is not None:
            return np.frombuffer(self._data, dtype=self.field.kind)
        out = np.empty(self.rows, dtype=object)
        for row in range(self.rows):
            out[row] = self.value(row)
        return out


def element(field: Field) -> Any:
    """Return NumPy's type of a tensor's elements. It has no bfloat16: those come as uint16."""
    return numpy("tensors").dtype("uint16" if field.dtype == "bfloat16" else field.dtype)


def convert(field: Field, value: Any) -> Any:
    """Return a value as a field holds it, which nobody else can change.

    Raises
    ------
    TypeError, ValueError
        When it is not of the field's type. The text names the field.
    """
    try:
        return _CONVERT[field.kind](field, value)
    except (TypeError, ValueError, OverflowError) as error:
        raise type(error)(f"field {field.name!r}: {error}") from None


def size_of(value: Any) -> int:
    """Return the bytes that a converted value takes."""
    if isinstance(value, bytes):
        return len(value)
    return int(getattr(value, "nbytes", 8))


def write(field: Field, values: list[Any], outbox: Outbox) -> list[list[int]]:
    """Put the converted values of a column, and return its buffers."""
    if field.kind in ("int64", "float64"):
        return [outbox.put(array("q" if field.kind == "int64" else "d", values))]
    if field.kind == "tensor":
        return [_write_tensors(field, values, outbox)]
    if field.kind == "image":
        shapes = outbox.put(array("i", [n for image in values for n in image.shape]))
        return [shapes, *_write_values([memoryview(image).cast("B") for image in values], outbox)]
    return _write_values(values, outbox)


def _write_tensors(field: Field, values: list[Any], outbox: Outbox) -> list[int]:
    dtype = element(field)
    size = dtype.itemsize
    for side in field.shape:
        size *= side
    room = numpy("tensors").frombuffer(outbox.room(size * len(values)), dtype=dtype).reshape(len(values), *field.shape)
    for row, value in enumerate(values):
        room[row] = value
    return outbox.last


def _write_values(values: list[Any], outbox: Outbox) -> list[list[int]]:
    ends, total = array("q", [0]), 0
    for value in values:
        total += len(value)
        ends.append(total)
    places = outbox.put(ends)
    if total == 0:
        return [places, [*places[:1], 0]]
    room = outbox.room(total)
    where = outbox.last
    for at, value in zip(ends, values, strict=False):
        room[at : at + len(value)] = value
    return [places, where]


def _integer(_: Field, value: Any) -> int:
    if isinstance(value, float) or (hasattr(value, "dtype") and value.dtype.kind == "f"):
        raise TypeError(f"{value!r} is no whole number")
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"{number} does not fit in 64 bits")
    return number


def _float(_: Field, value: Any) -> float:
    return float(value)


def _text(_: Field, value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} is no text")
    return value.encode()


def _bytes(_: Field, value: Any) -> bytes:
    if isinstance(value, (str, int)):
        raise TypeError(f"a {type(value).__name__} is no bytes")
    return bytes(value)


def _image(field: Field, value: Any) -> Any:
    image = numpy("images").array(value, order="C")
    if image.ndim != 3 or image.shape[2] != field.shape[2] or 0 in image.shape:
        raise ValueError(f"the shape is {list(image.shape)}; images are [height, width, {field.shape[2]}]")
    if image.dtype != element(field):
        raise TypeError(f"values are {image.dtype}, not {field.dtype}")
    return image


def _tensor(field: Field, value: Any) -> Any:
    np, dtype = numpy("tensors"), element(field)
    given = np.asarray(value)
    if given.shape != field.shape:
        raise ValueError(f"the shape is {list(given.shape)}; {list(field.shape)} is declared")
    if dtype.kind in "iu" and given.dtype.kind in "iu" and given.size:
        bounds = np.iinfo(dtype)
        if given.min() < bounds.min or given.max() > bounds.max:
            raise OverflowError(f"values go from {given.min()} to {given.max()}; {field.dtype} is declared")
    elif given.dtype != dtype and not np.can_cast(given.dtype, dtype, "same_kind"):
        raise TypeError(
            f"values are {given.dtype}; {field.dtype} is declared, and turning one into the other could lose something"
        )
    return np.array(given, dtype=dtype, order="C")


_CONVERT: dict[str, Callable[[Field, Any], Any]] = {
    "int64": _integer,
    "float64": _float,
    "text": _text,
    "bytes": _bytes,
    "image": _image,
    "tensor": _tensor,
}
