"""One epoch's stream through shared memory: no thread, no copy."""

from __future__ import annotations

from typing import Any

from millrace import _wire
from millrace._image import Imager, copied, own_memory
from millrace._process import PROCESS
from millrace._ring import INLINE, Arena, End, Line, Memory, Ready, parse_image
from millrace._stream import Item
from millrace._wire import Position
from millrace.errors import InternalError, MillraceError, UnavailableError

_MAX_INLINE = 1 << 32
_MOST_HELD = 2
"""Slots that a trainer may hold when it asks for a batch; the next ones are copied, so that the ring goes on."""


class RingStream:
    """The rest of an epoch, from a position on, as :class:`millrace._stream.Stream` is.

    Parameters
    ----------
    line : Line
        Connection to the ring socket; it outlives the stream.
    position : Position
        Where to begin.
    imager : Imager
        Makes the batches.
    room : int
        Bytes in each slot for what precedes the columns.
    cursor : str
        State of the loader before the first batch.
    gone : callable
        Makes the error of a sidecar that went away.
    """

    def __init__(self, line: Line, position: Position, imager: Imager, room: int, cursor: str, gone: Any) -> None:
        self._line = line
        self._imager = imager
        self._room = room
        self._cursor = cursor
        self._gone = gone
        self._number = line.begin(*position)
        self._handed_out = 0
        self._came = 0
        self._last = False
        self._closed = False
        self._over = False
        self._error: MillraceError | None = None

    @property
    def waited(self) -> bool:
        """Whether the last :meth:`next` had to wait."""
        return self._line.waited

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
        self._line.waited = False
        if self._handed_out and not self._over:
            self._line.commit(self._number, self._handed_out)
        while not self._over:
            try:
                message = self._line.next(timeout)
                if isinstance(message, Ready):
                    item = self._item(message)
                    if item is not None:
                        self._handed_out += 1
                        return item
                else:
                    self._ended(message)
            except UnavailableError as error:
                self._fail(self._gone(str(error)))
            except MillraceError as error:
                self._fail(error)
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        """End the stream; twice is fine. What was sent for it goes back when the next stream reads on."""
        self._closed = True
        self._over = True

    def _fail(self, error: MillraceError) -> None:
        error.__traceback__ = None
        self._error = error
        self._over = True

    def _ended(self, end: End) -> None:
        if end.stream not in (self._number, 0):
            return  # of a stream that was closed
        self._over = True
        if end.text:
            self._error = _wire.error_from(end.text) or InternalError(end.text)
        elif not self._last:
            self._error = self._gone("it ended the stream in the middle of an epoch")

    def _item(self, ready: Ready) -> Item | None:
        memory, arena = self._memory(ready)
        if ready.stream != self._number:
            return None  # of a stream that was closed; its slot goes back
        number = 0 if arena is None else arena.number
        image = parse_image(bytes(memory.view[: ready.head]), ready, number)
        header = _wire.parse_header(image.header)
        if ready.sequence != self._came or header.sequence != self._came + ready.before:
            raise InternalError(f"batch {self._came} of the stream came as number {header.sequence}")
        if arena is not None and (arena.read_only or len(arena.lent) > _MOST_HELD):
            if not arena.read_only:
                PROCESS.say_once(
                    "kept batches",
                    f"{len(arena.lent)} batches are kept, and the memory that is shared with the sidecar has room for "
                    f"{arena.slots}: batches are copied from now on while that many are kept",
                )
            fresh = copied(memory, self._room, ready.size)
            parse_image(bytes(memory.view[: ready.head]), ready, number)  # It has not changed meanwhile.
            memory = fresh
        if header.last_part and header.cursor:
            self._cursor = header.cursor
        batch = self._imager.batch(memory, image.table, header, self._cursor)
        self._came += 1
        self._last = header.last_of_epoch
        return Item(batch, header)

    def _memory(self, ready: Ready) -> tuple[Memory, Arena | None]:
        line = self._line
        if ready.slot == INLINE:
            if ready.size > _MAX_INLINE:
                raise InternalError(f"the sidecar announced a batch of {ready.size} bytes")
            memory = own_memory(ready.size)
            line.read_into(memory.view)
            return memory, None
        arena = line.arena
        if arena is None or ready.slot >= arena.slots or not ready.head <= ready.size <= arena.slot_bytes:
            raise InternalError(f"the sidecar announced a batch in slot {ready.slot}, which there is not")
        return arena.memory(ready.slot, ready.generation), arena
