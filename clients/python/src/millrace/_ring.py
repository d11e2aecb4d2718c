"""Shared memory of a sidecar: its socket, the memory that it passes on, and slots that go back to it.

The protocol is docs/formats/ring.md. A slot is lent with a batch and given back when the last tensor that shows a part of
it is gone, however that tensor came about. So each batch gets an owner of its own for its tensors: a view that is made
once and handed out again could not tell when the views of it that a trainer made are gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import socket
import struct
import time
import zlib
from collections import deque
from functools import partial
from typing import Any, NamedTuple

from millrace._process import PROCESS
from millrace.errors import BadDataError, InternalError, MillraceError, UnavailableError

SUFFIX = ".ring"
VERSION = 1
INLINE = 0xFFFFFFFF

_HELLO = struct.Struct("<8sHHI32s16x")
_BEGIN = struct.Struct("<B3xIQQQ")
_RELEASE = struct.Struct("<B3xIQQ8x")
_COMMIT = struct.Struct("<B3xIQ16x")
_READY = struct.Struct("<BxHIIIQQQQQ8x")
_SHARE = struct.Struct("<BxHIQQ40x")
_WELCOME = struct.Struct("<B3xIII48x")
_END = struct.Struct("<B3xII52x")
_IMAGE = struct.Struct("<IHHQQQIIQ8xII")
_REPLY = 64
_BEGIN_KIND, _RELEASE_KIND, _COMMIT_KIND = 1, 2, 3
_WELCOME_KIND, _SHARE_KIND, READY_KIND, END_KIND = 16, 17, 18, 19
_READ_ONLY = 1
_IMAGE_MAGIC, _IMAGE_BYTES = 0x4C53524D, 64
_MAX_TEXT = 1 << 20
_CONNECT_SECONDS = 5.0
_MOST_AT_ONCE = 64
"""Slots that are given back in one piece, which the kernel takes whole or not at all."""
_SWEEP_MS = 1.0
"""How often a trainer that waits looks whether a GPU has done with a slot."""
_MAP_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)


class Ready(NamedTuple):
    """A batch that was handed over."""

    slot: int
    stream: int
    generation: int
    sequence: int
    head: int
    size: int
    before: int = 0
    """How many batches the sequence number in memory that peers share counts beyond that of the stream."""


class End(NamedTuple):
    """The end of a stream: of its epoch, or with the text of an error."""

    stream: int
    text: str


class Image(NamedTuple):
    """What precedes the columns of a batch in memory."""

    header: bytes
    table: bytes


def parse_image(head: bytes, ready: Ready, arena: int) -> Image:
    """Read the head of an image, and check that it is the one that was announced.

    Raises
    ------
    BadDataError
        When a byte of it is another than was written, or it is of another batch.
    """
    if len(head) < _IMAGE_BYTES:
        raise BadDataError(f"batch {ready.sequence} lies in memory with a head of {len(head)} bytes")
    magic, version, _, owner, generation, sequence, header, table, size, _, crc = _IMAGE.unpack_from(head)
    if crc != zlib.crc32(head[_IMAGE_BYTES:], zlib.crc32(head[: _IMAGE_BYTES - 4])):
        raise BadDataError(f"the head of batch {ready.sequence} in shared memory is damaged: its checksum is another")
    if magic != _IMAGE_MAGIC or version != VERSION:
        raise BadDataError(f"batch {ready.sequence} lies in memory in a form that this client does not know")
    if (owner, generation, sequence, size) != (arena, ready.generation, ready.sequence + ready.before, ready.size):
        raise BadDataError(
            f"slot {ready.slot} of the shared memory does not hold batch {ready.sequence}, which was announced in it"
        )
    at = _IMAGE_BYTES + (header + 7) // 8 * 8
    if at + table != len(head):
        raise BadDataError(f"the head of batch {ready.sequence} has {len(head)} bytes, not the {at + table} that it names")
    return Image(head[_IMAGE_BYTES : _IMAGE_BYTES + header], head[at:])


class Memory:
    """Bytes that a batch lies in, from byte ``base`` of its image on, and whoever keeps them alive."""

    __slots__ = ("address", "base", "owner", "view")

    def __init__(self, owner: Any, address: int, view: Any, base: int = 0) -> None:
        self.owner = owner
        self.address = address
        self.view = view
        self.base = base


class Lease:
    """The right to a slot. When the last reference to it is gone the slot goes back."""

    __slots__ = ("__weakref__", "_arena", "_generation", "_slot")

    def __init__(self, arena: Arena, slot: int, generation: int) -> None:
        self._arena = arena
        self._slot = slot
        self._generation = generation
        arena.lent.add(slot)

    def __del__(self) -> None:
        self._arena.give_back(self._slot, self._generation)


class Arena:
    """One memory that is shared with the sidecar.

    Parameters
    ----------
    line : Line
        Where slots are given back.
    fd : int
        Descriptor of the memory; closed here.
    number, slots, slot_bytes : int
        What the sidecar says of it.
    read_only : bool
        Whether it can only be read.
    """

    def __init__(self, line: Line, fd: int, number: int, slots: int, slot_bytes: int, read_only: bool) -> None:
        self.line = line
        self.number = number
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.read_only = read_only
        self.lent: set[int] = set()
        self.pinning: Any = None
        access = mmap.PROT_READ if read_only else mmap.PROT_READ | mmap.PROT_WRITE
        try:
            self._map = mmap.mmap(fd, slots * slot_bytes, mmap.MAP_SHARED | _MAP_POPULATE, access)
        finally:
            os.close(fd)
        whole = memoryview(self._map)
        self.views = [whole[i * slot_bytes : (i + 1) * slot_bytes] for i in range(slots)]
        self.address = _address(self._map, read_only)
        self._owner = ctypes.c_uint8 * slot_bytes

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return self.slots * self.slot_bytes

    def memory(self, slot: int, generation: int) -> Memory:
        """Take a slot over, with an owner that gives it back at its end."""
        address = self.address + slot * self.slot_bytes
        owner: Any = self._owner.from_address(address)
        owner.lease = Lease(self, slot, generation)
        return Memory(owner, address, self.views[slot])

    def give_back(self, slot: int, generation: int) -> None:
        """Give a slot back, once a GPU has read what it was asked to."""
        if self.pinning is None or PROCESS.forked:
            self._give_back(slot, generation)
        else:
            self.pinning.leave(partial(self._give_back, slot, generation))

    def _give_back(self, slot: int, generation: int) -> None:
        self.lent.discard(slot)
        self.line.give_back(self.number, slot, generation)


def _address(mapped: mmap.mmap, read_only: bool) -> int:
    if not read_only:
        return ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    import pyarrow as pa

    return int(pa.py_buffer(mapped).address)


class Line:
    """The connection to the ring socket of a sidecar.

    Parameters
    ----------
    path : str
        Path of the sidecar's Flight socket.
    session : str
        Name of the session.

    Raises
    ------
    OSError
        When nobody answers.
    """

    def __init__(self, path: str, session: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._unsent: deque[bytes] = deque()
        self._returned: deque[bytes] = deque()
        self._waiting = False
        self._welcome: tuple[bytes, int] | None = None
        self._numbers = 0
        self._seen: bytes | None = None
        self.arena: Arena | None = None
        self.pinning: Any = None
        """What locks the memory for a GPU, if that is asked for."""
        self.waited = False
        """Whether :meth:`next` had to wait, since this was last set to False."""
        try:
            self._socket.settimeout(_CONNECT_SECONDS)
            self._socket.connect(path + SUFFIX)
            self._socket.sendall(_HELLO.pack(b"MILLRING", VERSION, 0, 0, session.encode()))
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def welcome(self) -> tuple[bytes, int]:
        """Wait for the sidecar's answer: the schema of its batches, and the room for heads.

        Raises
        ------
        MillraceError
            When it says no.
        """
        if self._welcome is None:
            deadline = time.monotonic() + _CONNECT_SECONDS * 2
            message = self._exactly(_REPLY, deadline)
            if message[0] == END_KIND:
                raise self._refusal(message, deadline)
            kind, schema, room, version = _WELCOME.unpack(message)
            if kind != _WELCOME_KIND or version != VERSION or schema > _MAX_TEXT:
                raise InternalError("the sidecar's ring socket says what this client does not understand")
            self._welcome = (self._exactly(schema, deadline), room)
        return self._welcome

    def begin(self, epoch: int, step: int, row: int) -> int:
        """Ask for the rest of an epoch; the number names the stream."""
        self._numbers += 1
        self._send_returned()
        self._send(_BEGIN.pack(_BEGIN_KIND, self._numbers, epoch, step, row))
        return self._numbers

    def commit(self, stream: int, count: int) -> None:
        """Say that the first batches of a stream are consumed."""
        self._send_returned(_COMMIT.pack(_COMMIT_KIND, stream, count))

    def give_back(self, arena: int, slot: int, generation: int) -> None:
        """Give a slot back. It may be called at any moment, on any thread.

        The message goes with the next one: until a batch is asked for, the sidecar has no use for the slot, and so it is
        woken once. When a batch is waited for, it goes at once.
        """
        if not PROCESS.forked:
            self._returned.append(_RELEASE.pack(_RELEASE_KIND, slot, generation, arena))
            if self._waiting:
                self._send_returned()

    def held(self) -> int:
        """Count the slots that batches which were handed out still lie in."""
        return 0 if self.arena is None else len(self.arena.lent)

    def next(self, timeout: float | None) -> Ready | End:
        """Wait for the next message about a batch.

        It can be interrupted at any place and goes on where it was: a message is looked at first and taken after that.

        Raises
        ------
        TimeoutError
            When none came in time.
        UnavailableError
            When the sidecar has gone.
        """
        if self.pinning is not None:
            self.pinning.sweep()
        self._send_returned()
        if self._unsent:
            self._flush()
        while True:
            message = self._seen
            if message is None or not self._was_taken(message):
                message = self._seen = self._look(timeout)
                if message[0] == READY_KIND:
                    self._socket.recv(_REPLY)
            kind = message[0]
            if kind == READY_KIND:
                self._seen = None
                _, _, slot, stream, _, generation, sequence, head, size, before = _READY.unpack(message)
                return Ready(slot, stream, generation, sequence, head, size, before)
            self._seen = None
            try:
                if kind == END_KIND:
                    _, length, stream = _END.unpack(message)
                    text = self._exactly(_REPLY + min(length, _MAX_TEXT), None)[_REPLY:]
                    return End(stream, text.decode(errors="replace"))
                if kind != _SHARE_KIND:
                    raise InternalError(f"the sidecar's ring socket sent a message of the unknown kind {kind}")
                self._share()
            except BaseException:
                self.close()
                raise

    def read_into(self, view: Any) -> None:
        """Read what follows a message. An interruption ends the connection: its rest could not be told apart."""
        try:
            at = 0
            while at < len(view):
                try:
                    count = self._socket.recv_into(view[at:])
                except BlockingIOError:
                    self._poll.poll()
                    continue
                if count == 0:
                    raise UnavailableError("the sidecar went away")
                at += count
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave. What was handed out stays valid."""
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._poll.unregister(self._socket)
        self._socket.close()

    def _look(self, timeout: float | None) -> bytes:
        deadline = None
        while True:
            try:
                message = self._socket.recv(_REPLY, socket.MSG_PEEK)
            except BlockingIOError:
                message = None
            except OSError as error:
                raise UnavailableError(f"the sidecar went away: {error.strerror or error}") from None
            if message is not None and len(message) == _REPLY:
                return message
            if message is not None and not message:
                raise UnavailableError("the sidecar went away")
            self.waited = True
            now = time.monotonic()
            if timeout is not None and deadline is None:
                deadline = now + timeout
            if deadline is not None and now >= deadline:
                raise TimeoutError
            wait = None if deadline is None else max(1.0, (deadline - now) * 1000)
            if self.pinning is not None and self.pinning.sweep():
                wait = _SWEEP_MS
            self._waiting = True  # before what was given back is sent: from now on others send it
            try:
                self._send_returned()
                self._poll.poll(wait)
            finally:
                self._waiting = False
            if self._unsent:
                self._flush()

    def _was_taken(self, seen: bytes) -> bool:
        """Say whether a message that was looked at when an interruption came had been taken too."""
        try:
            return seen[0] == READY_KIND and self._socket.recv(_REPLY, socket.MSG_PEEK) != seen
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _share(self) -> None:
        message, fds, _, _ = socket.recv_fds(self._socket, _REPLY, 1)
        _, flags, slots, slot_bytes, number = _SHARE.unpack(message)
        if len(fds) != 1 or slots < 1 or slot_bytes < mmap.PAGESIZE or slot_bytes % mmap.PAGESIZE:
            for fd in fds:
                os.close(fd)
            raise InternalError("the sidecar's ring socket passed no memory on")
        self.arena = Arena(self, fds[0], number, slots, slot_bytes, bool(flags & _READ_ONLY))
        if self.pinning is not None:
            self.pinning.lock(self.arena)

    def _exactly(self, count: int, deadline: float | None) -> bytes:
        data = bytearray(count)
        view, at = memoryview(data), 0
        while at < count:
            try:
                got = self._socket.recv_into(view[at:])
            except BlockingIOError:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise UnavailableError("the sidecar's ring socket does not answer") from None
                self._poll.poll(None if left is None else left * 1000 + 1)
                continue
            except OSError as error:
                raise UnavailableError(f"the sidecar went away: {error.strerror or error}") from None
            if got == 0:
                raise UnavailableError("the sidecar went away")
            at += got
        return bytes(data)

    def _refusal(self, message: bytes, deadline: float) -> MillraceError:
        from millrace import _wire

        text = self._exactly(min(_END.unpack(message)[1], _MAX_TEXT), deadline).decode(errors="replace")
        return _wire.error_from(text) or InternalError(text)

    def _send_returned(self, last: bytes = b"") -> None:
        """Send what slots were given back, and a message after that, as one."""
        messages: list[bytes] = []
        with contextlib.suppress(IndexError):  # another thread may have taken the last one
            while len(messages) < _MOST_AT_ONCE:
                messages.append(self._returned.popleft())
        if messages or last:
            self._send(b"".join((*messages, last)))
        if self._returned:
            self._send_returned()

    def _send(self, message: bytes) -> None:
        # A message is so small that the kernel takes all of it or nothing, so threads cannot mix theirs up.
        if self._unsent:
            self._unsent.append(message)
            return
        try:
            self._socket.send(message)
        except BlockingIOError:
            self._unsent.append(message)
        except OSError:
            pass  # That the sidecar has gone is seen where it is read from.

    def _flush(self) -> None:
        while self._unsent:
            message = self._unsent.popleft()
            try:
                self._socket.send(message)
            except BlockingIOError:
                self._unsent.appendleft(message)
                return
            except OSError:
                return
