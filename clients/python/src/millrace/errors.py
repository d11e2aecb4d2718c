"""What can go wrong, one class for each kind of error that the server knows.

The text is the server's: one line that says what happened to which object and what to do. Catch :class:`MillraceError`
for all of them. None of them is a ``StopIteration``, so an error can never look like the end of an epoch.
"""

from __future__ import annotations

__all__ = [
    "BadDataError",
    "CanceledError",
    "ConflictError",
    "ExhaustedError",
    "InternalError",
    "InvalidError",
    "MillraceError",
    "NotFoundError",
    "StallError",
    "UnavailableError",
    "by_kind",
]


class MillraceError(Exception):
    """Any error of Millrace.

    Attributes
    ----------
    kind : str
        The kind as the server names it, such as ``"invalid"`` or ``"bad_data"``.
    """

    kind: str = "internal"


class InvalidError(MillraceError, ValueError):
    """The request cannot be right, whenever it is made: a misspelt parameter, a batch that the ranks cannot share."""

    kind = "invalid"


class NotFoundError(MillraceError, LookupError):
    """Something that the request names does not exist: a file, a shard, a job."""

    kind = "not_found"


class ConflictError(MillraceError):
    """The request contradicts what holds now: ranks that disagree, a state of another recipe, a changed world size."""

    kind = "conflict"


class UnavailableError(MillraceError, ConnectionError):
    """Nobody answers, or the other side is going away. Trying again later may help."""

    kind = "unavailable"


class BadDataError(MillraceError, ValueError):
    """A sample or shard is corrupt. The text names the file, the member, its offset and the cause."""

    kind = "bad_data"


class ExhaustedError(MillraceError):
    """A limit or budget is used up, or the job does not fit the memory that it may have."""

    kind = "exhausted"


class InternalError(MillraceError, RuntimeError):
    """A fault of Millrace itself. Please report it."""

    kind = "internal"


class CanceledError(MillraceError):
    """The job was stopped, or the session was closed by someone else."""

    kind = "canceled"


class StallError(MillraceError, TimeoutError):
    """No batch came within ``timeout``. The text ends with the sidecar's last word about who waits for what.

    Nothing is lost: the stream stays open, and ``next()`` may be called again.
    """

    kind = "stall"


_KINDS: dict[str, type[MillraceError]] = {
    cls.kind: cls
    for cls in (
        InvalidError,
        NotFoundError,
        ConflictError,
        UnavailableError,
        BadDataError,
        ExhaustedError,
        InternalError,
        CanceledError,
        StallError,
    )
}


def by_kind(kind: str, text: str) -> MillraceError:
    """Make the error of a kind; an unknown kind gives a plain :class:`MillraceError` that carries it.

    Parameters
    ----------
    kind : str
        The kind as the server names it.
    text : str
        One line for people.
    """
    cls = _KINDS.get(kind)
    if cls is not None:
        return cls(text)
    error = MillraceError(text)
    error.kind = kind
    return error
