"""The bytes of the session protocol: requests, answers, batch headers and error texts. No I/O."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from millrace.errors import InternalError, MillraceError, by_kind

PROTOCOL_VERSION = 1
OPEN, CLOSE, STATUS = "millrace.open", "millrace.close", "millrace.status"
KEY_COLUMN, SAMPLE_COLUMN, VALID_COLUMN = "__key__", "__sample__", "__valid__"
META_COLUMNS = frozenset({KEY_COLUMN, SAMPLE_COLUMN, VALID_COLUMN})

_HEADER = struct.Struct("<BBHIQQQQIIQ")
_ACK = struct.Struct("<Q")
_LAST_OF_EPOCH, _LAST_PART = 1, 2

_KIND = re.compile(r"^(?P<text>.*?) \[kind=(?P<kind>\w+)\]", re.DOTALL)
_PREFIX = re.compile(r"^[^:]*?, with message: ", re.DOTALL)
_CONTEXT = re.compile(r"\.? (Detail: |gRPC client debug context: |Client context: ).*$", re.DOTALL)


class Position(NamedTuple):
    """The next global batch of a stream: its epoch, its step, and the row of the stream where it begins."""

    epoch: int
    step: int
    row: int


class Header(NamedTuple):
    """What a batch says about itself."""

    last_of_epoch: bool
    last_part: bool
    part: int
    epoch: int
    step: int
    next_row: int
    generation: int
    rows: int
    valid_rows: int
    sequence: int
    cursor: str

    @property
    def next(self) -> Position:
        """Position of the global batch after this one's."""
        if self.last_of_epoch:
            return Position(self.epoch + 1, 0, 0)
        return Position(self.epoch, self.step + 1, self.next_row)


@dataclass(frozen=True)
class Settings:
    """How a job deals the stream; all ranks of a job agree on it."""

    seed: int
    shuffle: str
    global_batch: int
    accumulation: int
    tail: str
    on_error: str
    prefetch: int
    epochs: int
    max_bad: int = 0
    max_bad_fraction: float = 0.0


@dataclass(frozen=True)
class Opened:
    """What the sidecar says about a session that it opened."""

    session: str
    job: str
    rows: int
    steps: int
    batch_rows: int
    samples: int
    start: Position
    dtypes: Mapping[str, str]
    ring: int
    """Version of the ring protocol that the sidecar speaks beside its Unix sockets; 0: none."""


def parse_header(metadata: bytes) -> Header:
    """Read the ``app_metadata`` of a batch.

    Raises
    ------
    InternalError
        When it is cut short or of another version.
    """
    if len(metadata) < _HEADER.size:
        raise InternalError(f"the header of a batch has {len(metadata)} bytes instead of {_HEADER.size} or more")
    version, flags, length, part, epoch, step, row, generation, rows, valid, sequence = _HEADER.unpack_from(metadata)
    if version != PROTOCOL_VERSION:
        raise InternalError(
            f"the sidecar sends batches of version {version}, this client reads {PROTOCOL_VERSION}: "
            "install a client of the sidecar's release"
        )
    cursor = metadata[_HEADER.size : _HEADER.size + length]
    if len(cursor) != length:
        raise InternalError(f"the cursor of a batch has {len(cursor)} bytes instead of {length}")
    return Header(
        bool(flags & _LAST_OF_EPOCH),
        bool(flags & _LAST_PART),
        part,
        epoch,
        step,
        row,
        generation,
        rows,
        valid,
        sequence,
        cursor.decode("ascii", errors="replace"),
    )


def pack_header(header: Header) -> bytes:
    """Write the ``app_metadata`` of a batch: the reverse of :func:`parse_header`."""
    flags = _LAST_OF_EPOCH * header.last_of_epoch | _LAST_PART * header.last_part
    cursor = header.cursor.encode("ascii")
    return (
        _HEADER.pack(
            PROTOCOL_VERSION,
            flags,
            len(cursor),
            header.part,
            header.epoch,
            header.step,
            header.next_row,
            header.generation,
            header.rows,
            header.valid_rows,
            header.sequence,
        )
        + cursor
    )


def pack_ack(consumed: int) -> bytes:
    """Write the message that says how many batches of a stream are consumed."""
    return _ACK.pack(consumed)


def open_request(
    *,
    job: str,
    recipe: str,
    settings: Settings,
    rank: int,
    world_size: int,
    cursor: str,
    continue_on_mismatch: bool,
    attempt: int,
    peer: int = 0,
    peers: int = 1,
) -> bytes:
    """Write the body of ``millrace.open``."""
    sharing = {"peer": peer, "peers": peers} if peers > 1 else {}
    return dump(
        {
            "version": PROTOCOL_VERSION,
            "job": job,
            "recipe": recipe,
            "settings": asdict(settings),
            "rank": rank,
            "world_size": world_size,
            "cursor": cursor,
            "continue_on_mismatch": continue_on_mismatch,
            "attempt": attempt,
            **sharing,
        }
    )


def parse_opened(body: bytes) -> Opened:
    """Read the answer to ``millrace.open``."""
    try:
        answer = json.loads(body)
        start = answer["start"]
        return Opened(
            session=answer["session"],
            job=answer["job"],
            rows=answer["rows"],
            steps=answer["steps"],
            batch_rows=answer["batch_rows"],
            samples=answer["samples"],
            start=Position(start["epoch"], start["step"], start["row"]),
            dtypes={column["name"]: column["dtype"] for column in answer["columns"] or ()},
            ring=int(answer.get("ring", 0)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError(f"the sidecar's answer to {OPEN} cannot be read: {error!r}") from error


def ticket(session: str, position: Position) -> bytes:
    """Write the command of the stream that begins at a position."""
    return dump({"session": session, **position._asdict()})


def dump(value: dict[str, Any]) -> bytes:
    """Write a request body."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def waiting(status: bytes, job: str) -> str:
    """Find in the answer to ``millrace.status`` what a job waits for; empty when it says nothing."""
    try:
        jobs = json.loads(status).get("jobs") or []
        mine = next((j for j in jobs if j.get("name") == job), None)
    except (ValueError, AttributeError, TypeError):
        return ""
    if mine is None:
        return f"the sidecar knows no job {job!r}"
    return str(mine.get("error") or mine.get("waiting") or "")


def error_from(message: str) -> MillraceError | None:
    """Make the error that the server meant out of the text of an exception of pyarrow.

    gRPC and pyarrow wrap the server's line in prefixes and debug context; the ``[kind=…]`` marks its end.

    Returns
    -------
    MillraceError or None
        None when the text has no kind, so that it was not written by the server.
    """
    match = _KIND.search(message)
    if match is None:
        return None
    return by_kind(match["kind"], _PREFIX.sub("", match["text"]))


def bare_text(message: str) -> str:
    """Remove what gRPC and pyarrow add around a text without a kind."""
    return _CONTEXT.sub("", _PREFIX.sub("", message)).strip()
