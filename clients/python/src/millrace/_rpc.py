"""One gRPC connection to a sidecar: actions that Ctrl-C can interrupt, and errors in the server's words."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
from pyarrow import flight

from millrace import _wire
from millrace._tls import encrypted
from millrace.errors import CanceledError, InternalError, InvalidError, MillraceError, StallError, UnavailableError

T = TypeVar("T")

_SCHEMES = {
    "unix": "grpc+unix",
    "grpc+unix": "grpc+unix",
    "grpc": "grpc+tcp",
    "grpc+tcp": "grpc+tcp",
    "grpc+tls": "grpc+tls",
}
_GRACE_SECONDS = 5.0


class Connection:
    """A connection to the sidecar at an endpoint.

    Parameters
    ----------
    endpoint : str
        ``unix:///path``, ``grpc://host:port`` or ``grpc+tls://host:port``.
    fate : callable
        Says how a sidecar of our own ended; empty when it runs or is not ours.
    """

    def __init__(self, endpoint: str, fate: Callable[[], str]) -> None:
        self.endpoint = endpoint
        self._fate = fate
        address, options = encrypted(location(endpoint), os.environ)
        self._client = flight.FlightClient(address, **options)
        self._calls: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def call(self, action: str, body: bytes, timeout: float) -> bytes:
        """Call an action and return the body of its answer.

        It runs on a thread of its own, so that Ctrl-C ends the wait at once.
        """
        answer: list[bytes] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                options = flight.FlightCallOptions(timeout=timeout)
                answer.extend(r.body.to_pybytes() for r in self._client.do_action(flight.Action(action, body), options))
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=run, name=f"{action} call", daemon=True)
        thread.start()
        self._calls.add(thread)
        thread.join(timeout + _GRACE_SECONDS)
        if failure:
            raise self.error(failure[0]) from None
        if thread.is_alive():
            raise StallError(f"the sidecar at {self.endpoint} has not answered {action} for {timeout:.0f} s")
        if len(answer) != 1:
            raise InternalError(f"the sidecar at {self.endpoint} answered {action} with {len(answer)} results")
        return answer[0]

    def exchange(self, command: bytes) -> tuple[flight.FlightStreamWriter, flight.FlightStreamReader]:
        """Begin a stream: a writer for acknowledgements and a reader for batches."""
        writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_command(command))
        return writer, reader

    def error(self, error: BaseException) -> MillraceError:
        """Turn what pyarrow raised into the error that the server meant, or into what happened to the connection."""
        if isinstance(error, MillraceError):
            return error
        message = str(error.args[0]) if error.args else str(error)
        meant = _wire.error_from(message)
        if meant is not None:
            return meant
        text = _wire.bare_text(message)
        if isinstance(error, flight.FlightUnavailableError):
            return UnavailableError(self._unavailable(text))
        if isinstance(error, flight.FlightTimedOutError):
            return StallError(f"the sidecar at {self.endpoint} has not answered in time: {text}")
        if isinstance(error, flight.FlightCancelledError):
            return CanceledError(f"the call to the sidecar at {self.endpoint} was cancelled: {text}")
        return InternalError(f"the call to the sidecar at {self.endpoint} failed: {type(error).__name__}: {text}")

    def gone(self, text: str) -> UnavailableError:
        """Make the error of a sidecar that went away, or broke off."""
        return UnavailableError(self._fate() or f"the sidecar at {self.endpoint}: {text}")

    def close(self) -> None:
        """Close the connection. Streams must have ended; an action that Ctrl-C left running keeps it open until it ends."""
        if not any(thread.is_alive() for thread in self._calls):
            with contextlib.suppress(pa.ArrowException):
                self._client.close()

    def _unavailable(self, text: str) -> str:
        fate = self._fate()
        if fate:
            return fate
        if "failed to connect" in text:
            reason = text.rsplit(": ", 1)[-1]
            return (
                f"no sidecar answers at {self.endpoint} ({reason}); start one with `millrace sidecar`, "
                "or unset MILLRACE_ENDPOINT and endpoint= to have a local one started"
            )
        return f"the sidecar at {self.endpoint} went away: {text}"


def location(endpoint: str) -> str:
    """Write an endpoint as pyarrow wants it.

    Raises
    ------
    InvalidError
        When it is neither a Unix socket nor a host and port.
    """
    scheme, separator, rest = endpoint.partition("://")
    if not separator or scheme not in _SCHEMES or not rest or (scheme.endswith("unix") and not rest.startswith("/")):
        raise InvalidError(f"endpoint {endpoint!r} is neither unix:///path/to.sock nor grpc://host:port")
    return f"{_SCHEMES[scheme]}://{rest}"
