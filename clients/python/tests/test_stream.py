"""Acknowledgements, faults in the middle, waits and their end."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time

import pytest

import millrace as mr


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_the_sidecar_is_never_more_than_prefetch_ahead(loader, sidecar, prefetch):
    made = loader("fake://rows=80", prefetch_batches=prefetch)
    for taken, _ in enumerate(made, 1):
        wait_until(lambda taken=taken: len(sidecar.acks) >= min(taken - 1, 20 - prefetch - 1))
    assert sidecar.most_ahead == prefetch
    assert sidecar.acks == list(range(1, 21))


def test_a_batch_is_acknowledged_when_the_next_is_asked_for(loader, sidecar):
    iterator = iter(loader(prefetch_batches=1))
    next(iterator)
    assert sidecar.acks == []
    next(iterator)
    assert sidecar.acks == [1]


def test_what_came_before_a_bad_sample_is_handed_out(loader):
    made = loader("fake://rows=20&bad=1")
    iterator = iter(made)
    assert next(iterator).meta.step == 0
    with pytest.raises(mr.BadDataError) as caught:
        next(iterator)
    assert str(caught.value) == "sample fake://train.tar!n01_10026.jpg (offset 12, 98 bytes): truncated JPEG"
    with pytest.raises(mr.BadDataError):
        next(iterator)


def test_after_an_error_the_next_epoch_is_the_same_one(loader, sidecar):
    made = loader("fake://rows=20&bad=1")
    for _ in range(2):
        with pytest.raises(mr.BadDataError):
            list(made)
    assert [entry for entry in sidecar.log if entry.startswith("read")] == ["read 0 (0, 0, 0)", "read 0 (0, 1, 4)"]


def test_a_stream_that_ends_early_is_an_error_not_an_end(loader):
    with pytest.raises(mr.UnavailableError, match="ended the stream in the middle of an epoch"):
        list(loader("fake://rows=20&cut=2"))


def test_a_gap_in_the_stream_is_an_error(loader):
    with pytest.raises(mr.InternalError, match="batch 2 of the stream came as number 3"):
        list(loader("fake://rows=20&jump=2"))


def test_a_sidecar_that_leaves_and_comes_back(loader, sidecar):
    made = loader("fake://rows=20&refuse_read=1")
    with pytest.raises(mr.UnavailableError, match=r"^the sidecar is shutting down$"):
        next(iter(made))
    for job in sidecar.jobs.values():
        job.options.pop("refuse_read")
    opened = len(sidecar.opened)
    sidecar_options = sidecar.open
    sidecar.open = lambda body: sidecar_options({**body, "recipe": '{"source": "fake://rows=20"}'})
    assert len(list(made)) == 5
    assert len(sidecar.opened) == opened + 1


def test_ranks_at_different_positions_are_told(loader):
    first, second = (loader(job="x", rank=r, world_size=2, batch_size=2) for r in range(2))
    second.set_epoch(1)
    iterators = [iter(first), iter(second)]
    for iterator in iterators:
        with pytest.raises(mr.ConflictError, match=r"different positions: rank 0 at \(0, 0, 0\), rank 1 at \(1, 0, 0\)"):
            next(iterator)


def test_ranks_with_different_settings_are_told(loader):
    first, second = (loader(job="x", rank=r, world_size=2, batch_size=2 + r * 2) for r in range(2))
    iter(first)
    with pytest.raises(mr.ConflictError, match=r'^rank 1 joined job "x" with other settings$'):
        iter(second)


@pytest.mark.parametrize(
    ("source", "cls", "text"),
    [
        ("fake://missing=1", mr.NotFoundError, "no samples matched fake://missing=1"),
        (
            mr.Recipe("fake://").op("resise"),
            mr.InvalidError,
            'recipe: operator 1: unknown operator "resise"; did you mean "resize"?',
        ),
    ],
)
def test_errors_of_open_are_the_sidecars_words(loader, source, cls, text):
    made = loader(source)
    for use in (lambda: iter(made), lambda: len(made)):
        with pytest.raises(cls) as caught:
            use()
        assert str(caught.value) == text


@pytest.mark.parametrize("kind", ["unix", "grpc"])
def test_nobody_answers(loader, tmp_path, kind):
    endpoint = f"unix://{tmp_path}/none.sock" if kind == "unix" else "grpc://127.0.0.1:1"
    made = loader(endpoint=endpoint)
    with pytest.raises(mr.UnavailableError) as caught:
        iter(made)
    assert str(caught.value).startswith(f"no sidecar answers at {endpoint} (")
    assert str(caught.value).endswith("start one with `millrace sidecar`, or unset MILLRACE_ENDPOINT and endpoint= "
                                      "to have a local one started")  # fmt: skip


def test_a_stall_says_who_waits_for_what_and_loses_nothing(loader, sidecar):
    made = loader("fake://rows=20&stall=2&release=1", timeout=0.2)
    sidecar.hold.clear()
    iterator = iter(made)
    assert [next(iterator).meta.step for _ in range(2)] == [0, 1]
    for _ in range(2):
        with pytest.raises(mr.StallError, match=r"^rank 0 got no batch in 0.2 s: rank 0 has waited for partition 3/"):
            next(iterator)
    sidecar.hold.set()
    made._timeout = None
    assert [b.meta.step for b in iterator] == [2, 3, 4]


def test_a_missing_rank_is_named(loader):
    made = loader(rank=0, world_size=2, batch_size=2, job="x", timeout=0.1)
    with pytest.raises(mr.StallError, match=r"^rank 0 got no batch in 0.1 s: ranks \[1\] have not joined"):
        next(iter(made))


@pytest.mark.parametrize("source", ["fake://stall=0", "fake://slow_open=1"])
def test_interrupt_ends_a_wait_at_once(loader, sidecar, source):
    sidecar.hold.clear()
    made = loader(source, timeout=0)
    begun = threading.Event()

    def interrupt():
        begun.wait()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        begun.set()
        next(iter(made))
    assert time.monotonic() - started < 10
    sidecar.hold.set()
    thread.join()


def test_two_hundred_tiny_epochs_of_jittered_ranks(loader):
    ranks = [loader("fake://rows=4", batch_size=2, job="tiny", rank=r, world_size=2) for r in range(2)]
    failures: list[BaseException] = []

    def train(rank: int) -> None:
        try:
            for epoch in range(200):
                if (epoch * 7 + rank * 3) % 11 == 0:
                    time.sleep(0.002)
                assert [b.meta.epoch for b in ranks[rank]] == [epoch]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(r,)) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_leaving_at_every_step_leaves_nothing_behind(loader, sidecar):
    made = loader("fake://rows=20")
    for taken in range(6):
        list(itertools.islice(made, taken))
    made.close()
    assert not any(t.name == "millrace reader" for t in threading.enumerate())
    assert not sidecar.members
