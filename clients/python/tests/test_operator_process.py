"""The process that runs functions, fed as the worker does it."""

from __future__ import annotations

import array
import fcntl
import json
import mmap
import os
import socket
import struct
import threading

import numpy as np
import pytest

from millrace._operators.link import Gone, Link, Outbox
from millrace._operators.serve import Server

PIXELS = {"name": "pixels", "kind": "tensor", "dtype": "uint8", "shape": [4], "made": False}
TEXT = {"name": "text", "kind": "text", "dtype": "none", "shape": [], "made": False}


def untouched(row):
    assert row["pixels"].tolist() == [ord(c) for c in row["text"] * 4]
    with pytest.raises(ValueError, match="read-only"):
        row["pixels"][0] = 1
    return row


kept = []


def keeps(row):
    kept.append(row["pixels"])
    return row


def fails(row):
    pixels = row["pixels"]
    raise ValueError(f"{pixels}")


def shared(row, buffer=np.zeros(4, np.uint8)):  # noqa: B008 the very mistake: one array for all rows
    buffer[:] = row["pixels"] + 1
    return {"pixels": buffer}


def grows(row):
    return {"text": row["text"] * 100_000}


def kinds(row):
    return {"text": "x", "pixels": [1, 2, 3, 4]}


def floats(row):
    return {"pixels": np.array([0.5, 1, 2, 3])}


def large(row):
    return {"pixels": [1, 2, 3, 256]}


def longer(row):
    return {"pixels": [1, 2, 3]}


class Worker:
    """The other end of the socket."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.out = os.memfd_create("out")
        os.ftruncate(self.out, 4096)
        fd = os.dup(self.out)
        server = Server(Link(theirs.detach()), Outbox(fd))

        def serve() -> None:
            try:
                while True:
                    frame, got = server._link.receive()
                    server.open(frame) if frame["type"] == "open" else server.call(frame, got)
            except Gone:
                server._link._socket.close()
                os.close(fd)

        self.thread = threading.Thread(target=serve)
        self.thread.start()

    def close(self) -> None:
        self.socket.close()
        self.thread.join()
        os.close(self.out)

    def say(self, frame, fds=()) -> dict:
        text = json.dumps(frame).encode()
        socket.send_fds(self.socket, [struct.pack("<I", len(text)) + text], list(fds))
        size = struct.unpack("<I", self.socket.recv(4, socket.MSG_WAITALL))[0]
        return json.loads(self.socket.recv(size, socket.MSG_WAITALL))

    def open(self, name: str) -> dict:
        frame = {"type": "open", "function": 1, "call": f"{__name__}:{name}", "pickle": "", "mode": "map", "format": ""}
        frame |= {
            "keeps_rows": True,
            "args": {},
            "index": 3,
            "inputs": [PIXELS, TEXT],
            "out": [PIXELS, TEXT],
            "max_bytes": 1 << 24,
        }
        return self.say(frame)

    def call(self, letters: str, new: bool) -> dict:
        data = bytearray(1024)

        def put(at: int, what: bytes) -> list[int]:
            data[at : at + len(what)] = what
            return [at, len(what)]

        n = len(letters)
        ends = array.array("q", range(n + 1)).tobytes()
        frame = {
            "type": "call",
            "function": 1,
            "rows": n,
            "size": len(data),
            "new": new,
            "seed": 1,
            "epoch": 2,
            "samples": put(0, array.array("Q", range(n)).tobytes()),
            "keys": [put(128, ends), put(256, letters.encode())],
            "columns": [[put(320, b"".join(c.encode() * 4 for c in letters))], [put(448, ends), put(576, letters.encode())]],
        }
        if new:
            self.memory = os.memfd_create("in")
            os.write(self.memory, data)
        else:
            os.pwrite(self.memory, data, 0)
        answer = self.say(frame, [self.memory] if new else [])
        if new:
            self.last, self.memory = self.memory, os.dup(self.memory)
            os.close(self.last)
        return answer

    def made(self, extent) -> bytes:
        with mmap.mmap(self.out, 0, prot=mmap.PROT_READ) as memory:
            return memory[extent[0] : extent[0] + extent[1]]


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.close()
    if hasattr(made, "memory"):
        os.close(made.memory)


def test_what_is_untouched_does_not_come_back_and_memory_is_used_again(worker):
    assert worker.open("untouched") == {"type": "ready"}
    for i, letters in enumerate(("abc", "de", "f")):
        answer = worker.call(letters, new=i == 0)
        assert answer["type"] == "rows", answer["traceback"]
        assert (answer["rows"], answer["columns"], answer["kept"], answer["more"]) == (len(letters), {}, False, False)


def test_memory_that_a_function_keeps_is_left_to_it(worker):
    kept.clear()
    worker.open("keeps")
    assert worker.call("ab", new=True)["kept"] is True
    os.close(worker.memory)
    assert worker.call("cd", new=True)["kept"] is True
    assert [k.tobytes() for k in kept] == [b"aaaa", b"bbbb", b"cccc", b"dddd"]
    kept.clear()


def test_an_error_keeps_no_memory(worker):
    worker.open("fails")
    for new in (True, False):
        answer = worker.call("ab", new)
        assert (answer["type"], answer["first"], answer["last"], answer["kept"]) == ("failed", 0, 0, False)
        assert answer["error"] == "ValueError: [97 97 97 97]"
        assert "in fails" in answer["traceback"]


def test_an_array_that_is_used_again_for_each_row(worker):
    worker.open("shared")
    answer = worker.call("abc", new=True)
    assert worker.made(answer["columns"]["pixels"][0]) == b"bbbbccccdddd"


def test_memory_grows(worker):
    worker.open("grows")
    answer = worker.call("ab", new=True)
    assert answer["size"] == os.fstat(worker.out).st_size >= 200_000
    assert worker.made(answer["columns"]["text"][1]) == b"a" * 100_000 + b"b" * 100_000


def test_types(worker):
    worker.open("kinds")
    assert worker.made(worker.call("a", new=True)["columns"]["pixels"][0]) == b"\1\2\3\4"


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (
            "floats",
            "TypeError: field 'pixels': values are float64; uint8 is declared, "
            "and turning one into the other could lose something",
        ),
        ("large", "OverflowError: field 'pixels': values go from 1 to 256; uint8 is declared"),
        ("longer", "ValueError: field 'pixels': the shape is [3]; [4] is declared"),
    ],
)
def test_other_types(worker, function, error):
    worker.open(function)
    assert worker.call("a", new=True)["error"] == error


def test_a_sealed_memory_can_grow():
    """The worker seals the memory against shrinking, which must not keep it from growing."""
    fd = os.memfd_create("out", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    outbox = Outbox(fd)
    outbox.limit = 1 << 20
    assert outbox.put(b"x" * 10_000) == [64, 10_000]
    with pytest.raises(ValueError, match=r"the function made [\d,]+ bytes at a time; at most 1,048,576"):
        outbox.put(b"x" * (1 << 20))
    os.close(fd)
