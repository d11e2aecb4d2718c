"""What is done with the rows of a call, by mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from millrace._operators.columns import KEEP, Field, Input
from millrace._operators.context import BatchContext, Context
from millrace._operators.modules import numpy, pyarrow

ROW = "__row__"


class Rows:
    """The rows of a call.

    Parameters
    ----------
    columns : list of Input
        What the function gets.
    keys, samples : list
        Names and numbers of the samples.
    seed, epoch, index : int
        The rest of the random key.
    """

    def __init__(self, columns: list[Input], keys: list[str], samples: list[int], seed: int, epoch: int, index: int) -> None:
        self.columns = columns
        self.keys = keys
        self.samples = samples
        self._rest = (seed, epoch, index)

    def __len__(self) -> int:
        return len(self.keys)

    def row(self, i: int) -> dict[str, Any]:
        """Return a row."""
        return {c.field.name: c.value(i) for c in self.columns}

    def context(self, i: int) -> Context:
        """Return what the function is told of a row."""
        seed, epoch, index = self._rest
        return Context(seed, epoch, self.samples[i], index, self.keys[i])

    def batch_context(self) -> BatchContext:
        """Return what the function is told of all rows."""
        seed, epoch, index = self._rest
        return BatchContext(seed, epoch, self.samples, index, self.keys)


Made = Iterator[tuple[int, dict[str, Any]]]
"""Rows that were made: the row that each is made from, and its fields."""


class Function:
    """A function with the fields that it may make.

    Parameters
    ----------
    target : callable
        What to call.
    takes_context : bool
        Whether it wants ``ctx``.
    out : list of Field
        Fields of the output.
    mode : str
        ``"map"``, ``"filter"``, ``"flat_map"`` or ``"batches"``.
    keeps_rows : bool
        Whether each row has to give one.
    arrow : bool
        Whether batches are Arrow's.
    """

    def __init__(
        self, target: Callable[..., Any], takes_context: bool, out: list[Field], mode: str, keeps_rows: bool, arrow: bool
    ) -> None:
        self._target = target
        self._takes_context = takes_context
        self._out = {f.name: f for f in out}
        self._made = [f.name for f in out if f.made]
        self._keeps_rows = keeps_rows
        self._arrow = arrow
        self.run: Callable[[Rows, Callable[[int], None]], Made] = getattr(self, f"_{mode}")
        self.at_once = mode == "batches"

    def _call(self, given: Any, context: Callable[[], Any]) -> Any:
        return self._target(given, ctx=context()) if self._takes_context else self._target(given)

    def _map(self, rows: Rows, begin: Callable[[int], None]) -> Made:
        for i in range(len(rows)):
            begin(i)
            row = rows.row(i)
            before = dict(row)
            made = self._call(row, lambda i=i: rows.context(i))  # type: ignore[misc]
            yield i, self._fields(made, before)

    def _filter(self, rows: Rows, begin: Callable[[int], None]) -> Made:
        for i in range(len(rows)):
            begin(i)
            verdict = self._call(rows.row(i), lambda i=i: rows.context(i))  # type: ignore[misc]
            if verdict is None:
                raise TypeError("the filter returned None; return whether the row stays")
            if verdict:
                yield i, {}

    def _flat_map(self, rows: Rows, begin: Callable[[int], None]) -> Made:
        for i in range(len(rows)):
            begin(i)
            row = rows.row(i)
            before = dict(row)
            many = self._call(row, lambda i=i: rows.context(i))  # type: ignore[misc]
            if isinstance(many, (Mapping, str, bytes)) or not isinstance(many, Iterable):
                raise TypeError(f"the function returned {_name(many)}; return or yield any number of rows")
            for made in many:
                yield i, self._fields(made, before)
                begin(i)

    def _batches(self, rows: Rows, begin: Callable[[int], None]) -> Made:
        begin(0)
        made = self._call(self._batch(rows), rows.batch_context)
        several = made if _is_several(made) else [made]
        count = 0
        for batch in several:
            fields, sources = self._columns(batch, count, len(rows))
            for i, source in enumerate(sources):
                if self._keeps_rows and source != count:
                    raise ValueError(f"row {count} was made from row {source}; keeps_rows: false allows that")
                count += 1
                yield source, {name: values[i] for name, values in fields.items()}
            begin(0)
        if self._keeps_rows and count != len(rows):
            raise ValueError(f"the function returned {count} rows for {len(rows)}; keeps_rows: false allows that")

    def _fields(self, made: Any, before: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(made, Mapping):
            raise TypeError(f"the function returned {_name(made)}; return the row, as a dict")
        fields = {}
        for name, value in made.items():
            if name not in self._out:
                self._unknown(name)
            fields[name] = KEEP if name in before and before[name] is value and not self._out[name].made else value
        self._complete(fields)
        return fields

    def _unknown(self, name: Any) -> None:
        raise ValueError(f"the function returned field {name!r}, which `output` does not declare")

    def _complete(self, fields: dict[str, Any]) -> None:
        for name in self._made:
            if name not in fields:
                raise ValueError(f"the function returned no field {name!r}, which `output` declares")

    def _batch(self, rows: Rows) -> Any:
        np = numpy("batches")
        batch = {c.field.name: c.array() for c in rows.columns}
        batch[ROW] = np.arange(len(rows))
        if not self._arrow:
            return batch
        pa = pyarrow()
        columns = []
        for c in rows.columns:
            values = batch[c.field.name]
            if c.field.kind in ("text", "bytes"):
                columns.append(pa.array(list(values), pa.large_utf8() if c.field.kind == "text" else pa.large_binary()))
            elif c.field.kind == "tensor":
                columns.append(_tensor_array(pa, values))
            else:
                columns.append(pa.array(values))
        columns.append(pa.array(batch[ROW]))
        return pa.RecordBatch.from_arrays(columns, names=[*(c.field.name for c in rows.columns), ROW])

    def _columns(self, batch: Any, done: int, rows: int) -> tuple[dict[str, Any], list[int]]:
        if not isinstance(batch, Mapping):
            batch = _from_arrow(batch)
        fields = dict(batch)
        sources = fields.pop(ROW, None)
        for name in fields:
            if name not in self._out:
                self._unknown(name)
        self._complete(fields)
        lengths = {len(values) for values in fields.values()}
        if sources is not None:
            lengths.add(len(sources))
        if len(lengths) != 1:
            raise ValueError(
                f"the columns have different lengths: {sorted(lengths)}" if lengths else "the function returned no column"
            )
        count = lengths.pop()
        if sources is None:
            if not self._keeps_rows and (count != rows or done):
                raise ValueError(
                    f"the function returned {count} rows for {rows}; hand {ROW} on, so that each is known by its sample"
                )
            sources = range(done, done + count)
        listed = [int(i) for i in sources]
        if any(not 0 <= i < rows for i in listed):
            raise ValueError(f"{ROW} names a row that was not given" if count else "no rows")
        return fields, listed


def _is_several(made: Any) -> bool:
    return isinstance(made, Iterator) or (isinstance(made, list) and bool(made) and isinstance(made[0], Mapping))


def _tensor_array(pa: Any, values: Any) -> Any:
    kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(values.dtype), values.shape[1:])
    flat = pa.array(values.reshape(-1))
    size = max(1, values[0].size) if len(values) else 1
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(flat, size))


def _from_arrow(batch: Any) -> dict[str, Any]:
    pa = pyarrow()
    if not isinstance(batch, (pa.RecordBatch, pa.Table)):
        raise TypeError(f"the function returned {_name(batch)}; return columns: a dict, or a batch or table of Arrow's")
    fields: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if isinstance(column.type, pa.FixedShapeTensorType):
            fields[name] = column.to_numpy_ndarray()
        elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
            fields[name] = column.to_numpy(zero_copy_only=False)
        elif pa.types.is_fixed_size_list(column.type):
            fields[name] = numpy("tensors").stack(column.to_numpy(zero_copy_only=False)) if len(column) else []
        else:
            fields[name] = column.to_pylist()
    return fields


def _name(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
