"""Batches in shared memory: whose a slot is, what is damaged, what is kept, and what takes its place."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import select
import socket
import struct
import sys
import threading
import time
import zlib
from collections import deque

import numpy as np
import pytest
from fake_sidecar import order
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace import _process
from millrace._ring import Line, Ready, parse_image


@pytest.fixture(params=["ring"])
def transport(request):
    return request.param


@pytest.fixture
def warned(monkeypatch):
    monkeypatch.setattr(_process.PROCESS, "_warned", set())


def samples(batches) -> list[int]:
    return [int(s) for batch in batches for s in batch.meta.samples]


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)


HEADER = struct.pack("<IHHQQQIIQ8xI", 0x4C53524D, 1, 0, 7, 3, 5, 4, 16, 4096, 0)
BODY = b"meta\0\0\0\0" + bytes(16)
HEAD = HEADER + struct.pack("<I", zlib.crc32(BODY, zlib.crc32(HEADER))) + BODY
READY = Ready(0, 1, 3, 5, len(HEAD), 4096)


def test_a_head_is_read():
    assert parse_image(HEAD, READY, 7) == (b"meta", bytes(16))


@given(st.integers(0, len(HEAD) - 1), st.integers(1, 255))
def test_any_other_byte_in_a_head_is_an_error(at, change):
    damaged = bytearray(HEAD)
    damaged[at] ^= change
    with pytest.raises(mr.BadDataError):
        parse_image(bytes(damaged), READY, 7)


@given(st.binary(max_size=200))
def test_anything_else_is_no_head(data):
    with pytest.raises(mr.BadDataError):
        parse_image(data, READY, 7)


@pytest.mark.parametrize("other", [{"generation": 4}, {"sequence": 6}, {"size": 1}])
def test_the_head_of_another_batch_is_an_error(other):
    with pytest.raises(mr.BadDataError, match="does not hold batch"):
        parse_image(HEAD, READY._replace(**other), 7)


@pytest.mark.parametrize("at", [0, 20, 60, 70, 130])
def test_a_damaged_byte_in_memory_ends_the_epoch(loader, sidecar, at):
    def damage(whole):
        whole[at] ^= 1

    sidecar.rings.damage = damage
    with pytest.raises(mr.BadDataError, match="head of batch 0 in shared memory is damaged"):
        next(iter(loader()))


def test_tensors_lie_in_the_memory_and_are_writable(loader, sidecar):
    iterator = iter(loader())
    batch = next(iterator)
    before = batch["image"].copy()
    batch["image"] //= 2
    assert (batch["image"] == before // 2).all()
    assert sidecar.rings.released == []
    del batch
    next(iterator)
    wait_until(lambda: sidecar.rings.released[:1] == [0])


def test_a_view_keeps_its_slot(loader, sidecar):
    iterator = iter(loader("fake://rows=200"))
    view = next(iterator)["image"][1:2, 0]
    expected = view.copy()
    for _ in range(40):
        next(iterator)
    assert (view == expected).all()
    assert 0 not in sidecar.rings.released
    del view
    next(iterator)  # with which it is said
    wait_until(lambda: 0 in sidecar.rings.released)


def test_a_view_of_torchs_keeps_its_slot(loader, sidecar, monkeypatch):
    monkeypatch.undo()
    import torch

    monkeypatch.setenv("MILLRACE_ENDPOINT", sidecar.endpoint)
    iterator = iter(loader("fake://rows=200"))
    view = next(iterator)["image"].permute(1, 0, 2)[0]
    expected = view.clone()
    for _ in range(40):
        next(iterator)
    assert torch.equal(view, expected)
    assert 0 not in sidecar.rings.released


def test_kept_batches_are_copied_and_that_is_said_once(loader, warned, caplog):
    with caplog.at_level(logging.WARNING, "millrace"):
        kept = list(loader("fake://rows=400", batch_size=4))
    assert samples(kept) == order(0, 0, 400)
    assert all((b["image"][:, 0, 0] == np.array([int(s) * 7 % 256 for s in b.meta.samples])).all() for b in kept)
    assert len([r for r in caplog.records if "batches are kept" in r.message]) == 1


def test_copies_end_when_batches_are_dropped(loader, sidecar):
    iterator = iter(loader("fake://rows=400", batch_size=4))
    kept = list(itertools.islice(iterator, 10))
    kept.clear()
    gc.collect()
    batch = next(iterator)
    assert batch is not None
    wait_until(lambda: len(sidecar.rings.released) >= 10)
    assert len(sidecar.rings.released) == 10


def test_others_see_no_change_of_memory_that_is_read_only(loader, sidecar):
    sidecar.rings.read_only = True
    iterator = iter(loader())
    batch = next(iterator)
    expected = batch["image"].copy()
    batch["image"] += 1
    assert (batch["image"] == expected + 1).all()
    next(iterator)
    wait_until(lambda: sidecar.rings.released == [0])


@pytest.mark.parametrize("columns", ["image,label", "image,text,flag,ragged"])
def test_batches_without_room_come_through_the_socket(loader, sidecar, columns):
    sidecar.rings.slot_bytes = 4096
    batches = list(loader(f"fake://rows=20&columns={columns}"))
    assert samples(batches) == order(0, 0, 20)
    assert sidecar.rings.released == []
    batches[0]["image"][:] = 0
    assert batches[1]["image"].any()


def test_epochs_that_are_left_early_lose_no_slots(loader):
    made = loader("fake://rows=40", prefetch_batches=3)
    for epoch in range(12):
        assert samples([next(iter(made))]) == order(0, epoch, 40)[:4]
    assert len(list(made)) == 10


def test_without_a_socket_batches_come_by_flight(loader, sidecar, tmp_path, monkeypatch):
    sidecar.rings.close()
    monkeypatch.delenv("MILLRACE_TRANSPORT")
    assert samples(loader()) == order(0, 0, 20)
    with pytest.raises(mr.UnavailableError, match=r"transport='ring' needs memory that is shared with the sidecar: .*\.ring"):
        iter(loader(transport="ring"))


def test_a_sidecar_without_rings_is_read_by_flight(loader, sidecar, monkeypatch):
    sidecar.ring = 0
    monkeypatch.delenv("MILLRACE_TRANSPORT")
    assert samples(loader()) == order(0, 0, 20)
    with pytest.raises(mr.UnavailableError, match="the sidecar offers none"):
        iter(loader(transport="ring"))


@pytest.mark.parametrize("kind", ["unavailable", "exhausted"])
def test_without_memory_batches_come_by_flight(loader, sidecar, monkeypatch, kind):
    sidecar.rings.refusal = f"creating shared memory (memfd): operation not permitted [kind={kind}]"
    monkeypatch.delenv("MILLRACE_TRANSPORT")
    made = loader()
    assert [samples(made) for _ in range(2)] == [order(0, 0, 20), order(0, 1, 20)]
    with pytest.raises(mr.MillraceError, match="creating shared memory"):
        iter(loader(transport="ring"))


def test_other_refusals_are_errors(loader, sidecar, monkeypatch):
    sidecar.rings.refusal = "no such session [kind=not_found]"
    monkeypatch.delenv("MILLRACE_TRANSPORT")
    with pytest.raises(mr.NotFoundError, match="no such session"):
        iter(loader())


@pytest.mark.parametrize("read_only", [False, True])
def test_batches_may_be_changed_in_place_and_only_the_trainer_sees_it(loader, sidecar, monkeypatch, read_only):
    monkeypatch.undo()
    import torch

    monkeypatch.setenv("MILLRACE_ENDPOINT", sidecar.endpoint)
    sidecar.rings.read_only = read_only
    for epoch, batches in enumerate([loader("fake://rows=40&columns=score")] * 2):
        seen = []
        for batch in batches:
            expected = batch["score"].clone() / 255
            batch["score"].div_(255)
            assert torch.equal(batch["score"], expected)
            seen += [float(v) * 255 * 2 for v in batch["score"]]
        assert [round(v) for v in seen] == order(0, epoch, 40)


def test_slots_go_back_from_any_thread(loader, sidecar):
    made = loader("fake://rows=400")
    iterator = iter(made)
    for _ in range(20):
        kept = [next(iterator), next(iterator)]
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
    assert len(list(iterator)) == 60
    following = next(iter(made))
    wait_until(lambda: len(sidecar.rings.released) == 100)
    assert following is not None


def test_a_slot_that_is_given_back_while_another_thread_waits_goes_at_once():
    ours, theirs = socket.socketpair()
    line = Line.__new__(Line)
    line._socket, line._unsent, line._returned, line._waiting, line.pinning, line.waited = (
        ours,
        deque(),
        deque(),
        False,
        None,
        False,
    )
    ours.setblocking(False)
    line._poll = select.poll()
    line._poll.register(ours, select.POLLIN)
    waiting = threading.Thread(target=line._look, args=(None,))
    waiting.start()
    wait_until(lambda: line._waiting)
    line.give_back(1, 2, 3)
    assert theirs.recv(100)[:1] == b"\2"
    theirs.send(bytes(64))
    waiting.join()
    line.give_back(1, 2, 4)  # nobody waits: it goes with the next message, as one piece
    line.commit(1, 1)
    assert [m[0] for m in struct.iter_unpack("B31x", theirs.recv(100))] == [2, 3]
    ours.close()
    theirs.close()


def test_threads_may_take_turns(loader):
    iterator, seen = iter(loader("fake://rows=400")), []

    def take() -> None:
        for _ in range(10):
            seen.append(next(iterator))

    for _ in range(10):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    assert samples(seen) == order(0, 0, 400)


def test_transport_is_checked(loader):
    with pytest.raises(mr.InvalidError, match="transport='tcp' is none of"):
        loader(transport="tcp")


def test_thousands_of_kept_batches_need_no_descriptors(script):
    text = """
        import resource, logging
        import numpy
        import millrace as mr
        logging.disable()
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        loader = mr.DataLoader("fake://rows=10000", 2, transport="ring")
        kept = list(loader)
        assert len(kept) == 5000
        assert sorted(int(s) for b in kept for s in b.meta.samples) == list(range(10000))
        assert all(int(b["image"][0, 0, 0]) == int(b.meta.samples[0]) * 7 % 256 for b in kept)
        print("ok")
    """
    assert script.run(text, FAKE_RING="1") == "ok\n"


def test_a_forked_child_holds_no_connection(loader, sidecar):
    iterator = iter(loader("fake://rows=200"))
    batch = next(iterator)
    expected = batch["image"].copy()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # The batch can be read; dropping it gives nothing back that is the parent's.
            os.write(writer, b"y" if (batch["image"] == expected).all() else b"n")
            del batch
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 1) == b"y"
    assert sidecar.rings.released == []
    assert len(list(iterator)) == 49
