from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace import _wire
from millrace.errors import by_kind

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
CURSOR = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=500)
HEADERS = st.builds(_wire.Header, st.booleans(), st.booleans(), U32, U64, U64, U64, U64, U32, U32, U64, CURSOR)


@given(HEADERS)
def test_header_round_trip(header):
    assert _wire.parse_header(_wire.pack_header(header)) == header


def test_header_has_the_bytes_of_the_specification():
    header = _wire.Header(True, True, 2, 3, 4, 5, 6, 7, 8, 9, "abc")
    assert _wire.pack_header(header) == (
        bytes([1, 3, 3, 0, 2, 0, 0, 0])
        + b"".join(n.to_bytes(8, "little") for n in (3, 4, 5, 6))
        + bytes([7, 0, 0, 0, 8, 0, 0, 0])
        + (9).to_bytes(8, "little")
        + b"abc"
    )


@given(HEADERS, st.data())
def test_header_cut_short_is_an_error(header, data):
    whole = _wire.pack_header(header)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(mr.InternalError):
        _wire.parse_header(cut)


@given(st.binary(max_size=80))
def test_header_of_noise_is_read_or_refused(noise):
    try:
        _wire.parse_header(noise)
    except mr.InternalError:
        pass


def test_header_of_another_version_says_so():
    with pytest.raises(mr.InternalError, match="version 2, this client reads 1"):
        _wire.parse_header(b"\2" + bytes(55))


def test_next_position():
    header = _wire.Header(False, True, 0, 3, 4, 50, 0, 0, 0, 0, "")
    assert header.next == (3, 5, 50)
    assert header._replace(last_of_epoch=True).next == (4, 0, 0)


@pytest.mark.parametrize(
    ("kind", "cls", "also"),
    [
        ("invalid", mr.InvalidError, ValueError),
        ("not_found", mr.NotFoundError, LookupError),
        ("conflict", mr.ConflictError, mr.MillraceError),
        ("unavailable", mr.UnavailableError, ConnectionError),
        ("bad_data", mr.BadDataError, ValueError),
        ("exhausted", mr.ExhaustedError, mr.MillraceError),
        ("internal", mr.InternalError, RuntimeError),
        ("canceled", mr.CanceledError, mr.MillraceError),
        ("stall", mr.StallError, TimeoutError),
    ],
)
def test_each_kind_has_its_class(kind, cls, also):
    error = _wire.error_from(f"Flight returned some error, with message: what happened: to what [kind={kind}]. Detail: x")
    assert type(error) is cls
    assert isinstance(error, also)
    assert isinstance(error, mr.MillraceError)
    assert not isinstance(error, StopIteration)
    assert str(error) == "what happened: to what"
    assert error.kind == kind


def test_unknown_kind_and_no_kind():
    error = by_kind("new", "text")
    assert type(error) is mr.MillraceError
    assert error.kind == "new"
    assert _wire.error_from("failed to connect") is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"session": "s"}', b'{"start": 3}'])
def test_answer_that_cannot_be_read(body):
    with pytest.raises(mr.InternalError, match=r"millrace\.open"):
        _wire.parse_opened(body)


def test_waiting_reads_the_jobs_line():
    status = json.dumps({"jobs": [{"name": "a", "waiting": "for b"}, {"name": "c", "waiting": "w", "error": "e"}, {"name": "d"}]})
    assert _wire.waiting(status.encode(), "a") == "for b"
    assert _wire.waiting(status.encode(), "c") == "e"
    assert _wire.waiting(status.encode(), "d") == ""
    assert _wire.waiting(status.encode(), "x") == "the sidecar knows no job 'x'"
    assert _wire.waiting(b"nonsense", "x") == ""
    assert _wire.waiting(b"[]", "x") == ""
