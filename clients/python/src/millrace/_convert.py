"""From Arrow to tensors that belong to the caller: writable, and kept for as long as they are.

Large columns stay where gRPC has put their message, which nobody else has; small ones, and those that lie askew for
their element type, are copied.

Tensors are torch's when torch has been imported by the time an epoch begins, else numpy's. Neither is imported for
its own sake: importing torch takes seconds and hundreds of megabytes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from millrace._batch import Batch, Meta
from millrace._wire import KEY_COLUMN, META_COLUMNS, SAMPLE_COLUMN, VALID_COLUMN, Header
from millrace.errors import BadDataError, MillraceError

# Columns of at least this many bytes are not copied. Smaller ones are, so that they do not keep a whole message alive.
_ADOPT_BYTES = 1 << 20

_ARROW_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


def tensor_library() -> str:
    """Name the library that makes the tensors: ``"torch"`` when it is imported, else ``"numpy"``.

    Raises
    ------
    MillraceError
        When torch is not imported and numpy is not installed.
    """
    if hasattr(sys.modules.get("torch"), "frombuffer"):
        return "torch"
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise MillraceError("batches need torch or numpy: import torch before the first epoch, or pip install numpy") from None
    return "numpy"


class Converter:
    """Makes batches out of record batches of one stream.

    Parameters
    ----------
    library : {"torch", "numpy"}
        Who makes the tensors.
    dtypes : mapping of str to str
        Element type by column, as the sidecar states it; it tells bfloat16 from uint16, which Arrow cannot.
    pin : callable, optional
        Puts a tensor into page-locked memory.
    """

    def __init__(self, library: str, dtypes: Mapping[str, str], pin: Callable[[Any], Any] | None = None) -> None:
        self._library = library
        self._tensor = _torch_tensor if library == "torch" else _numpy_tensor
        self._dtypes = dtypes
        self.pin = pin
        self.vector: Callable[[Any, str], Any] = _torch_vector if library == "torch" else _numpy_vector
        self.run: Callable[..., Any] = _torch_run if library == "torch" else _numpy_run

    def batch(self, data: Any, header: Header, cursor: str) -> Batch:
        """Make a batch. ``cursor`` is the state after it."""
        fields = {}
        for i, name in enumerate(data.schema.names):
            if name not in META_COLUMNS:
                fields[name] = self.column(name, data.column(i))
        valid = None
        if header.valid_rows != header.rows:
            valid = bytes(_bits(data.column(VALID_COLUMN)))
        meta = Meta(
            epoch=header.epoch,
            step=header.step,
            part=header.part,
            rows=header.rows,
            valid_rows=header.valid_rows,
            cursor=cursor,
            keys=_own_text(data.column(KEY_COLUMN)),
            samples=bytes(_values(data.column(SAMPLE_COLUMN))),
            valid=b"\1" * header.rows if valid is None else valid,
            tensor=self.vector,
        )
        return Batch(fields, meta)

    def column(self, name: str, column: Any) -> Any:
        """Make what a batch has for a column: a tensor, a list of tensors or a list."""
        kind = column.type
        if isinstance(kind, pa.FixedShapeTensorType):
            storage = column.storage
            return self._fixed(name, column, storage.flatten(), (len(column), *kind.shape))
        if pa.types.is_struct(kind) and {"data", "shape"} <= {kind.field(i).name for i in range(kind.num_fields)}:
            return self._ragged(name, column)
        if pa.types.is_fixed_size_list(kind) and _is_number(kind.value_type):
            return self._fixed(name, column, column.flatten(), (len(column), kind.list_size))
        if _is_number(kind):
            return self._fixed(name, column, column, (len(column),))
        return column.to_pylist()

    def _fixed(self, name: str, column: Any, values: Any, shape: tuple[int, ...]) -> Any:
        if column.null_count:
            row = column.is_null().index(True).as_py()
            raise BadDataError(f"column {name!r} has no value in row {row} of a batch, so it cannot be a tensor")
        tensor = self._tensor(_values(values), self.dtype(name, values.type), shape)
        return tensor if self.pin is None else self.pin(tensor)

    def _ragged(self, name: str, column: Any) -> list[Any]:
        data, shapes = column.field("data"), column.field("shape").to_pylist()
        values = data.flatten()
        flat = self._fixed(name, column, values, (len(values),))
        rows, at = [], 0
        for shape in shapes:
            count = 1
            for side in shape:
                count *= side
            rows.append(flat[at : at + count].reshape(tuple(shape)))
            at += count
        return rows

    def element(self, dtype: str) -> tuple[Any, int]:
        """Give an element type as the library has it, and the bytes of an element."""
        width = int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8
        if self._library == "torch":
            return getattr(sys.modules["torch"], dtype), width
        return "uint16" if dtype == "bfloat16" else dtype, width

    def dtype(self, name: str, arrow_type: Any) -> str:
        """Name the element type of a column."""
        stated = self._dtypes.get(name)
        if stated == "bfloat16":
            return stated
        text = str(arrow_type)
        return _ARROW_NAMES.get(text, text)


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _values(array: Any) -> Any:
    """Give the values of a primitive array as writable memory of the caller."""
    if pa.types.is_boolean(array.type):
        return _bits(array)
    width = array.type.bit_width // 8
    buffer, offset, length = array.buffers()[1], array.offset * width, len(array) * width
    if length >= _ADOPT_BYTES and (buffer.address + offset) % width == 0:
        return _adopt(buffer, offset, length)
    return _copy(buffer, offset, length)


def _adopt(buffer: Any, offset: int, length: int) -> Any:
    """Take a part of a received message as the caller's own memory.

    Arrow calls what it has received immutable, since it may be shared; a message of a stream of ours is read once and
    belongs to nobody else.
    """
    memory: Any = (ctypes.c_uint8 * length).from_address(buffer.address + offset)
    memory.owner = buffer
    return memory


def _bits(array: Any) -> Any:
    """Spread booleans, which Arrow packs, over a byte each."""
    return _values(array.cast(pa.uint8()))


def _copy(buffer: Any, offset: int, length: int) -> Any:
    fresh = pa.allocate_buffer(length)
    if length:
        # The writer copies without holding the interpreter lock, so the trainer runs on meanwhile.
        with pa.FixedSizeBufferWriter(fresh) as writer:
            writer.write(buffer.slice(offset, length))
    return fresh


def _own_text(array: Any) -> Any:
    """Copy an array of text, so that it does not keep the whole message of its batch alive."""
    buffers = [None if b is None else _copy(b, 0, b.size) for b in array.buffers()]
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, array.offset)


def _torch_tensor(values: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    torch: Any = sys.modules["torch"]
    kind = getattr(torch, dtype)
    if len(memoryview(values)) == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(values, dtype=kind).reshape(shape)


def _numpy_tensor(values: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import numpy

    return numpy.frombuffer(values, dtype="uint16" if dtype == "bfloat16" else dtype).reshape(shape)


def _torch_vector(values: bytes, dtype: str) -> Any:
    torch: Any = sys.modules["torch"]
    kind = getattr(torch, dtype)
    return torch.frombuffer(bytearray(values), dtype=kind) if values else torch.empty(0, dtype=kind)


def _numpy_vector(values: bytes, dtype: str) -> Any:
    import numpy

    return numpy.frombuffer(bytearray(values), dtype=dtype)


def _torch_run(owner: Any, dtype: Any, count: int, offset: int, shape: tuple[int, ...]) -> Any:
    torch: Any = sys.modules["torch"]
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(owner, dtype=dtype, count=count, offset=offset).view(shape)


def _numpy_run(owner: Any, dtype: Any, count: int, offset: int, shape: tuple[int, ...]) -> Any:
    import numpy

    return numpy.frombuffer(owner, dtype, count, offset).reshape(shape)
