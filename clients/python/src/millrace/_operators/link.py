"""The socket and the shared memory between this process and the worker."""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import sys
from typing import Any

_LENGTH = struct.Struct("<I")
_HEAD = 64
_ALIGNMENT = 64
_COUNTER = struct.Struct("<q")


class Gone(Exception):
    """The worker has closed the socket."""


class Link:
    """Frames of JSON, each behind its length. A frame may bring a file.

    Parameters
    ----------
    fd : int
        The socket.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def receive(self) -> tuple[dict[str, Any], int | None]:
        """Wait for the next frame; beside it, the file that came with it.

        Raises
        ------
        Gone
            When there will be none.
        """
        head, fds, _, _ = socket.recv_fds(self._socket, _LENGTH.size, 1)
        text = self._read(head, _LENGTH.size)
        frame: dict[str, Any] = json.loads(self._read(b"", _LENGTH.unpack(text)[0]))
        return frame, fds[0] if fds else None

    def send(self, frame: dict[str, Any]) -> None:
        """Send a frame."""
        text = json.dumps(frame).encode()
        self._socket.sendall(_LENGTH.pack(len(text)) + text)

    def _read(self, data: bytes, size: int) -> bytes:
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise Gone
            data += more
        return data


class Inbox:
    """Memory that the worker writes rows to. What is made of it are views that cannot be written to."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._others = 0

    def take(self, fd: int, size: int) -> None:
        """Map memory that came with a frame, in the place of the last."""
        self._memory = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        os.close(fd)
        self._others = sys.getrefcount(self._memory)

    def view(self, extent: list[int]) -> memoryview:
        """Look at a part of it."""
        assert self._memory is not None
        offset, size = extent
        return memoryview(self._memory)[offset : offset + size]

    def kept(self) -> bool:
        """Say whether someone still has views of it, and forget it then: it is theirs."""
        if self._memory is None or sys.getrefcount(self._memory) <= self._others:
            return False
        self._memory = None
        return True


class Outbox:
    """Memory that the worker reads rows from. It begins with the row that is being worked on, and a count of calls.

    Parameters
    ----------
    fd : int
        The memory, which may grow.

    Attributes
    ----------
    limit : int
        Bytes that may be put at a time.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.limit = 0
        self.last = [0, 0]
        self._memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self._at = _HEAD
        self._calls = 0

    @property
    def size(self) -> int:
        """Bytes that it has."""
        return len(self._memory)

    def begin(self, row: int) -> None:
        """Note that a call for a row begins."""
        self._calls += 1
        _COUNTER.pack_into(self._memory, 0, row)
        _COUNTER.pack_into(self._memory, 8, self._calls)

    def clear(self) -> None:
        """Make room: the worker has read what was put."""
        self._at = _HEAD

    def room(self, size: int) -> memoryview:
        """Reserve ``size`` bytes, at :meth:`last`."""
        start = self._at
        end = start + size
        if end > self.limit:
            raise ValueError(f"the function made {end:,} bytes at a time; at most {self.limit:,} can be handed on")
        if end > len(self._memory):
            os.ftruncate(self._fd, min(max(end, 2 * len(self._memory)), self.limit + _HEAD))
            self._memory = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        self._at = (end + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        self.last = [start, size]
        return memoryview(self._memory)[start:end]

    def put(self, data: Any) -> list[int]:
        """Copy bytes into it, and say where they are."""
        source = memoryview(data)
        if source.nbytes == 0:
            return [_HEAD, 0]
        self.room(source.nbytes)[:] = source.cast("B")
        return self.last
