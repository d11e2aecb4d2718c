"""The life of the process: load functions, and call them."""

from __future__ import annotations

import traceback
from array import array
from typing import Any, NamedTuple

from millrace._operators.columns import KEEP, Field, Input, convert, offsets, size_of, write
from millrace._operators.link import Gone, Inbox, Link, Outbox
from millrace._operators.load import load
from millrace._operators.modes import Function, Rows

# How much is gathered before it is handed on.
_PIECE = 32 << 20


def main() -> None:
    """Serve the worker that has started this process, until it closes the socket (3). Rows go out by memory (4)."""
    link = Link(3)
    server = Server(link, Outbox(4))
    try:
        while True:
            frame, fd = link.receive()
            if frame["type"] == "open":
                server.open(frame)
            else:
                server.call(frame, fd)
    except (Gone, ConnectionError):
        pass


class Loaded(NamedTuple):
    """A function with the fields that it takes and makes."""

    function: Function
    inputs: list[Field]
    out: list[Field]
    place: int
    """Its place in the recipe."""


class Server:
    """Runs functions.

    Parameters
    ----------
    link : Link
        To the worker.
    outbox : Outbox
        Where rows go.
    """

    def __init__(self, link: Link, outbox: Outbox) -> None:
        self._link = link
        self._inbox = Inbox()
        self._outbox = outbox
        self._loaded: dict[int, Loaded] = {}

    def open(self, frame: dict[str, Any]) -> None:
        """Load a function and say so, or what went wrong."""
        self._outbox.limit = frame["max_bytes"]
        out = [Field.read(f) for f in frame["out"]]
        try:
            target, takes_context = load(frame["call"], frame["pickle"], frame["args"])
            function = Function(target, takes_context, out, frame["mode"], frame["keeps_rows"], frame["format"] == "arrow")
        except Exception as error:
            self._link.send({"type": "failed", "first": 0, "last": 0, **_described(error)})
            return
        inputs = [Field.read(f) for f in frame["inputs"]]
        self._loaded[frame["function"]] = Loaded(function, inputs, out, frame["index"])
        self._link.send({"type": "ready"})

    def call(self, frame: dict[str, Any], fd: int | None) -> None:
        """Run a function on the rows of a frame."""
        at = [0]
        loaded = self._loaded[frame["function"]]

        def begin(row: int) -> None:
            at[0] = row
            self._outbox.begin(row)

        try:
            answer = {"type": "rows", "more": False, **self._call(loaded, frame, fd, begin)}
        except (Gone, ConnectionError):
            raise
        except Exception as error:
            first, last = (0, frame["rows"] - 1) if loaded.function.at_once else (at[0], at[0])
            answer = {"type": "failed", "first": first, "last": last, **_described(error)}
            traceback.clear_frames(error.__traceback__)  # which hold the rows
        # Only now nothing here looks at the rows any more.
        self._link.send({**answer, "kept": self._inbox.kept()})

    def _call(self, loaded: Loaded, frame: dict[str, Any], fd: int | None, begin: Any) -> dict[str, Any]:
        if fd is not None:
            self._inbox.take(fd, frame["size"])
        rows = self._rows(loaded, frame)
        pieces = Pieces(loaded.out, self._outbox, rows, loaded.function.at_once)
        for source, fields in loaded.function.run(rows, begin):
            if pieces.bytes >= _PIECE:
                self._link.send({"type": "rows", "more": True, "kept": False, **pieces.take(source)})
                self._link.receive()
            pieces.add(source, fields)
        return pieces.take(frame["rows"])

    def _rows(self, loaded: Loaded, frame: dict[str, Any]) -> Rows:
        n = frame["rows"]
        ends = offsets(self._inbox, frame["keys"][0])
        names = self._inbox.view(frame["keys"][1])
        keys = [str(names[ends[i] : ends[i + 1]], "utf-8", "replace") for i in range(n)]
        samples = self._inbox.view(frame["samples"]).cast("Q").tolist()
        columns = [Input(field, self._inbox, extents, n) for field, extents in zip(loaded.inputs, frame["columns"], strict=True)]
        return Rows(columns, keys, samples, frame["seed"], frame["epoch"], loaded.place)


class Pieces:
    """Rows that were made and are not handed on yet.

    Parameters
    ----------
    out : list of Field
        Fields of the output.
    outbox : Outbox
        Where they go.
    rows : Rows
        The rows that they are made from.
    at_once : bool
        Whether all rows are done by one call.
    """

    def __init__(self, out: list[Field], outbox: Outbox, rows: Rows, at_once: bool) -> None:
        self._out = {f.name: f for f in out}
        self._outbox = outbox
        self._inputs = {c.field.name: c for c in rows.columns}
        self._at_once = at_once
        self._sources: list[int] = []
        self._columns: dict[str, list[Any]] = {}
        self._last = -1
        self._part = 0  # rows made of the last source, or of all where they are done at once
        self.bytes = 0

    def add(self, source: int, fields: dict[str, Any]) -> None:
        """Add a row that was made of row ``source``."""
        count = len(self._sources)
        for name, value in fields.items():
            if value is KEEP and name not in self._columns:
                continue
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = [self._original(name, s) for s in self._sources]
            if value is KEEP:
                value = self._original(name, source)
            else:
                value = convert(self._out[name], value)
                self.bytes += size_of(value)
            column.append(value)
        for name, column in self._columns.items():
            if len(column) == count:
                column.append(self._original(name, source))
        self._sources.append(source)
        self._part = self._part + 1 if self._at_once or source == self._last else 1
        self._last = source

    def _original(self, name: str, source: int) -> Any:
        column = self._inputs.get(name)
        if column is None:
            raise ValueError(f"the function returned field {name!r} for some rows only; add it to `input`, or return it always")
        return convert(self._out[name], column.value(source))

    def take(self, following: int) -> dict[str, Any]:
        """Put what was gathered into the outbox, and say where it is. Row ``following`` is worked on next."""
        outbox = self._outbox
        outbox.clear()
        sources = outbox.put(array("q", self._sources))
        columns = {name: write(self._out[name], values, outbox) for name, values in self._columns.items()}
        done, part = (0, self._part) if self._at_once else (following, self._part if following == self._last else 0)
        answer = {
            "rows": len(self._sources),
            "from": sources,
            "columns": columns,
            "size": outbox.size,
            "done": done,
            "part": part,
        }
        self._sources, self._columns, self.bytes = [], {}, 0
        return answer


def _described(error: BaseException) -> dict[str, str]:
    line = traceback.format_exception_only(error)[-1].strip()
    own = error.__traceback__
    while own is not None and _is_ours(own.tb_frame.f_code.co_filename):
        own = own.tb_next
    # Without a frame of the user's own the line says all.
    text = "" if own is None else "".join(traceback.format_exception(type(error), error, own))
    return {"error": line, "traceback": text}


def _is_ours(filename: str) -> bool:
    return filename.rpartition("/")[0] == __file__.rpartition("/")[0]
