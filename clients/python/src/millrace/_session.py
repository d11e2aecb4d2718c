"""A session: one rank's membership in a job, from open to close."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace import _wire
from millrace._launch import Ranks, resolve_host
from millrace._process import PROCESS
from millrace._wire import Position, Settings
from millrace.errors import ExhaustedError, InvalidError, MillraceError, UnavailableError

if TYPE_CHECKING:
    from millrace._convert import Converter
    from millrace._cuda import DeviceStream
    from millrace._local import LocalSidecar
    from millrace._ring import Line
    from millrace._ringstream import RingStream
    from millrace._rpc import Connection
    from millrace._stream import Stream

_LOGGER = logging.getLogger("millrace")
_RING_VERSION = 1
_OPEN_SECONDS = 600.0
_CLOSE_SECONDS = 0.5
_STATUS_SECONDS = 2.0


@dataclass(frozen=True)
class Request:
    """What to open."""

    job: str
    recipe: str
    settings: Settings
    ranks: Ranks
    cursor: str
    continue_on_mismatch: bool
    attempt: int
    transport: str


class Session:
    """An open session. It connects, and starts the local sidecar if there is no endpoint.

    Parameters
    ----------
    endpoint : str or None
        Where the sidecar answers; None for the local one.
    request : Request
        What to open.
    env : mapping of str to str
        Environment to find the local sidecar's binary and host in.
    explicit_ranks : bool
        Whether the caller named its rank, so that several ranks may share this process.

    Raises
    ------
    MillraceError
        When nobody answers, or in the server's words.
    """

    def __init__(self, endpoint: str | None, request: Request, env: Mapping[str, str], explicit_ranks: bool) -> None:
        PROCESS.connecting(self)
        self._pid = os.getpid()
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._connection: Connection | None = None
        self._line: Line | None = None
        local = None if endpoint else _local(request.ranks, env, explicit_ranks)
        if local is not None:
            local.start()  # It starts up while pyarrow is imported below, which takes longer.
        from millrace._rpc import Connection

        if local is not None:
            local.wait()
            endpoint = local.endpoint
        self._connection = Connection(endpoint or "", local.fate if local is not None else str)
        body = _wire.open_request(
            job=request.job,
            recipe=request.recipe,
            settings=request.settings,
            rank=request.ranks.rank,
            world_size=request.ranks.world_size,
            cursor=request.cursor,
            continue_on_mismatch=request.continue_on_mismatch,
            attempt=request.attempt,
            peer=request.ranks.peer,
            peers=request.ranks.peers,
        )
        # A dataset that was never read before is indexed first, which takes as long as it takes.
        try:
            self.opened = _wire.parse_opened(self._connection.call(_wire.OPEN, body, _OPEN_SECONDS))
        except BaseException:
            connection, self._connection = self._connection, None
            connection.close()
            raise
        self._prefetch = request.settings.prefetch
        self._transport = request.transport
        try:
            self._line = self._connect_ring(endpoint or "", request.transport)
        except BaseException:
            self.close()
            raise

    def _connect_ring(self, endpoint: str, transport: str) -> Line | None:
        """Connect to the ring socket, so that the sidecar provides memory while it reads the first samples."""
        scheme, _, path = endpoint.partition("://")
        if transport == "flight":
            return None
        reason = ""
        if not scheme.endswith("unix"):
            reason = f"{endpoint} is no Unix socket"
        elif self.opened.ring != _RING_VERSION:
            reason = "the sidecar offers none"
        else:
            from millrace._ring import Line

            try:
                return Line(path, self.opened.session)
            except OSError as error:
                reason = f"{path}.ring: {error.strerror or error}"
        if transport == "ring":
            raise UnavailableError(f"transport='ring' needs memory that is shared with the sidecar: {reason}")
        _LOGGER.info("batches come by Flight: %s", reason)
        return None

    def stream(self, position: Position, cursor: str, pin_memory: bool, device: Any = None) -> Stream | RingStream | DeviceStream:
        """Begin to read the rest of the epoch at a position.

        Parameters
        ----------
        position : Position
            Where to begin.
        cursor : str
            State of the loader before the first batch.
        pin_memory : bool
            Whether tensors are put into page-locked memory.
        device : torch.device, optional
            GPU that batches are copied to.
        """
        pin = None
        if pin_memory:
            from millrace._cuda import CUDA, Pinning

            pin = CUDA.pin
            if self._line is not None and self._line.pinning is None:
                self._line.pinning = Pinning()
        stream = self._stream(position, cursor, pin)
        if device is None:
            return stream
        from millrace._cuda import DeviceStream

        return DeviceStream(stream, device)

    def _stream(self, position: Position, cursor: str, pin: Callable[[Any], Any] | None) -> Stream | RingStream:
        from millrace._convert import Converter, tensor_library
        from millrace._stream import Stream

        if self._connection is None:
            raise MillraceError("the session is closed")
        converter = Converter(tensor_library(), self.opened.dtypes, pin)
        line = self._welcomed()
        if line is not None:
            return self._ring_stream(line, position, converter, cursor)
        command = _wire.ticket(self.opened.session, position)
        stream = Stream(self._connection, command, converter, cursor, self._prefetch)
        self._streams.add(stream)
        return stream

    def _welcomed(self) -> Line | None:
        """Give the connection to the ring socket; None where the sidecar cannot have memory to share."""
        line = self._line
        if line is None:
            return None
        try:
            line.welcome()
        except (UnavailableError, ExhaustedError) as error:
            if self._transport == "ring":
                raise
            line.close()
            self._line = None
            _LOGGER.info("batches come by Flight: %s", error)
        return self._line

    def _ring_stream(self, line: Line, position: Position, converter: Converter, cursor: str) -> RingStream:
        from millrace._image import Imager
        from millrace._ringstream import RingStream

        schema, room = line.welcome()
        connection = self._connection
        if connection is None:
            raise MillraceError("the session is closed")
        return RingStream(line, position, Imager(schema, converter), room, cursor, connection.gone)

    def leave_to_parent(self) -> None:
        """Let go, in a forked child, of the socket whose end tells the sidecar that this trainer has died."""
        if self._line is not None:
            self._line.close()

    def waiting(self) -> str:
        """Ask the sidecar what the job waits for."""
        if self._connection is None:
            return "the session is closed"
        try:
            answer = self._connection.call(_wire.STATUS, b"{}", _STATUS_SECONDS)
        except MillraceError as error:
            return str(error)
        return _wire.waiting(answer, self.opened.job) or "the sidecar does not say what it waits for"

    def close(self) -> None:
        """End its streams and leave the job; twice is fine. Does nothing in a forked child."""
        if self._pid != os.getpid():
            return
        for stream in list(self._streams):
            stream.close()
        line, self._line = self._line, None
        if line is not None:
            line.close()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with contextlib.suppress(MillraceError):
            connection.call(_wire.CLOSE, _wire.dump({"session": self.opened.session}), _CLOSE_SECONDS)
        connection.close()


def _local(ranks: Ranks, env: Mapping[str, str], explicit_ranks: bool) -> LocalSidecar:
    host = resolve_host(env)
    if host is not None and host.local_world_size < host.world_size:
        raise InvalidError(
            f"the run has {host.world_size} processes but only {host.local_world_size} on this host, and a local sidecar "
            "serves one host: start `millrace sidecar` on each host and set MILLRACE_ENDPOINT"
        )
    if host is None and ranks.world_size * ranks.peers > 1 and not explicit_ranks:
        raise InvalidError(
            f"{ranks} has no endpoint, and without torchrun the ranks cannot find each other's local sidecar: "
            "start one with `millrace local --socket /path.sock` and set MILLRACE_ENDPOINT=unix:///path.sock"
        )
    from millrace._local import LocalSidecar

    return PROCESS.local_sidecar(lambda: LocalSidecar(host, env))
