"""One epoch's stream: a thread reads and converts ahead, the trainer takes batches."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any, NamedTuple

import pyarrow as pa

from millrace import _wire
from millrace._batch import Batch
from millrace._convert import Converter
from millrace._memory import Trimmer
from millrace._rpc import Connection
from millrace._wire import Header
from millrace.errors import InternalError, MillraceError, UnavailableError

_JOIN_SECONDS = 5.0


class Item(NamedTuple):
    """A batch and its header."""

    batch: Batch
    header: Header


class Stream:
    """The rest of an epoch, from a position on.

    The sidecar sends at most ``prefetch`` batches beyond what is acknowledged. A batch is acknowledged when the next
    one is asked for: only then has the caller surely finished with it.

    Parameters
    ----------
    connection : Connection
        Connection to the sidecar; it must live longer than the stream.
    command : bytes
        What to read.
    converter : Converter
        Makes the batches.
    cursor : str
        State of the loader before the first batch.
    prefetch : int
        Greatest number of batches kept here.
    """

    def __init__(self, connection: Connection, command: bytes, converter: Converter, cursor: str, prefetch: int) -> None:
        self._connection = connection
        self._command = command
        self._converter = converter
        self._cursor = cursor
        self._prefetch = prefetch
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._finished = False
        self._closed = False
        self._error: MillraceError | None = None
        self._handed_out = 0
        self.waited = False
        """Whether the last :meth:`next` had to wait."""
        self._call: tuple[Any, Any] | None = None
        self._write_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="millrace reader", daemon=True)
        self._thread.start()

    @property
    def _ready(self) -> bool:
        return bool(self._items) or self._finished

    def next(self, timeout: float | None) -> Item | None:
        """Take the next batch, and acknowledge the one before.

        Returns
        -------
        Item or None
            None at the end of the epoch.

        Raises
        ------
        TimeoutError
            When none came in time. The stream goes on.
        MillraceError
            What ended the stream. Batches that came before it are handed out first.
        """
        self._acknowledge()
        with self._changed:
            self.waited = not self._ready
            if not self._changed.wait_for(lambda: self._ready, timeout):
                raise TimeoutError
            if self._items:
                self._handed_out += 1
                item = self._items.popleft()
                self._changed.notify_all()
                return item
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        """End the stream and its thread; twice is fine."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            call, finished = self._call, self._finished
        if call is not None and not finished:
            call[1].cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    def _acknowledge(self) -> None:
        if self._handed_out == 0:
            return
        with self._write_lock:
            if self._call is not None and not self._finished:
                # When the stream has broken the reading side learns why, so a failed acknowledgement tells nothing.
                with contextlib.suppress(pa.ArrowException, OSError, EOFError):
                    self._call[0].write_metadata(pa.py_buffer(_wire.pack_ack(self._handed_out)))

    def _run(self) -> None:
        error: MillraceError | None = None
        writer = None
        try:
            writer, reader = self._connection.exchange(self._command)
            with self._changed:
                self._call = (writer, reader)
                closed = self._closed
            if closed:
                reader.cancel()
            self._read(reader)
        except BaseException as raised:
            error = self._connection.error(raised)
            error.__traceback__ = None
        with self._changed:
            self._error = error
            self._finished = True
            self._changed.notify_all()
        if writer is not None:
            # Without this the destructor would write what happened to standard error once more.
            with self._write_lock, contextlib.suppress(pa.ArrowException, OSError, EOFError):
                writer.close()

    def _read(self, reader: Any) -> None:
        ended, count, trimmer = False, 0, Trimmer()
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                if not ended:
                    raise UnavailableError(
                        f"the sidecar at {self._connection.endpoint} ended the stream in the middle of an epoch"
                    ) from None
                return
            if chunk.data is None or chunk.app_metadata is None:
                raise InternalError("the sidecar sent a message that is not a batch")
            header = _wire.parse_header(chunk.app_metadata.to_pybytes())
            if header.sequence != count or header.rows != chunk.data.num_rows:
                raise InternalError(
                    f"batch {count} of the stream came as number {header.sequence} "
                    f"with {chunk.data.num_rows} of {header.rows} rows"
                )
            count, ended = count + 1, header.last_of_epoch
            if header.last_part and header.cursor:
                self._cursor = header.cursor
            item = Item(self._converter.batch(chunk.data, header, self._cursor), header)
            with self._changed:
                self._changed.wait_for(lambda: len(self._items) < self._prefetch or self._closed)
                if self._closed:
                    return
                self._items.append(item)
                self._changed.notify_all()
            # The next read may take long; neither the message nor a batch that the trainer has dropped stays for it.
            size = chunk.data.nbytes
            del chunk, item
            trimmer.received(size)
