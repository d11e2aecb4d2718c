"""Page-locked memory and copies to a GPU, against a stand-in for the calls of CUDA: no test here has a GPU."""

from __future__ import annotations

import gc
import itertools
import logging
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from fake_sidecar import order

import millrace as mr
from millrace import _cuda, _process


@dataclass(eq=False)
class Event:
    happened: bool = False


@dataclass
class FakeCuda(_cuda.Cuda):
    """What CUDA would do: copies are clones, and events happen when a test says so."""

    there: bool = True
    allows: bool = True
    locked: dict[int, int] = field(default_factory=dict)
    unlocked: list[int] = field(default_factory=list)
    pinned: int = 0
    at_once: bool = True
    events: list[Event] = field(default_factory=list)
    received: list[tuple[int, Any, Event]] = field(default_factory=list)

    def available(self):
        return self.there

    def register(self, address, size):
        assert size > 0
        if self.allows:
            self.locked[address] = size
        return self.allows

    def unregister(self, address):
        self.unlocked.append(address)

    def is_locked(self, tensor) -> bool:
        return any(a <= tensor.data_ptr() < a + size for a, size in self.locked.items())

    def pin(self, tensor):
        if self.is_locked(tensor):
            return tensor
        self.pinned += 1
        return tensor.clone()

    def mark(self):
        self.events.append(Event(self.at_once))
        return self.events[-1]

    def happened(self, event):
        return event.happened

    def stream(self, device):
        return f"side of {device}"

    def send(self, tensors, device, stream):
        assert stream == f"side of {device}"
        return [t.clone() for t in tensors], self.mark()

    def receive(self, copies, device, event):
        self.received.append((len(copies), device, event))

    def finish(self, event):
        event.happened = True


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(_cuda, "CUDA", fake)
    monkeypatch.setattr(_process.PROCESS, "_warned", set())
    yield fake
    gc.collect()  # batches in cycles, while what they are given back to is there


@pytest.fixture
def ring(transport, sidecar):
    return transport == "ring"


def samples(batches) -> list[int]:
    return [int(s) for batch in batches for s in batch.meta.samples]


def is_right(batch) -> bool:
    return batch["image"][:, 0, 0].tolist() == [(int(s) * 7 + batch.meta.epoch * 11) % 256 for s in batch.meta.samples]


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_shared_memory_is_locked_once_and_not_copied(loader, cuda, ring):
    made = loader("fake://rows=40", pin_memory=True)
    for epoch in range(3):
        count = 0
        for batch in made:
            assert is_right(batch)
            assert cuda.is_locked(batch["image"]) == ring
            count += 1
        assert count == 10, epoch
    assert len(cuda.locked) == (1 if ring else 0)
    assert (cuda.pinned > 0) != ring


@pytest.mark.parametrize("transport", ["ring"])
def test_memory_is_unlocked_when_nothing_shows_it_any_more(sidecar, cuda):
    made = mr.DataLoader("fake://rows=20", 4, pin_memory=True)
    batch = next(iter(made))
    made.close()
    del made
    gc.collect()
    assert cuda.unlocked == []
    assert is_right(batch)
    del batch
    gc.collect()
    gc.collect()  # what waited for a copy is garbage only now
    assert cuda.unlocked == list(cuda.locked) != []


@pytest.mark.parametrize("transport", ["ring"])
def test_a_slot_goes_back_when_the_copies_out_of_it_are_done(loader, sidecar, cuda):
    cuda.at_once = False
    iterator = iter(loader("fake://rows=200", pin_memory=True))
    batch = next(iterator)
    assert cuda.events == []
    del batch
    assert len(cuda.events) == 1
    next(iterator)
    assert 0 not in sidecar.rings.released
    cuda.events[0].happened = True
    next(iterator)
    wait_until(lambda: 0 in sidecar.rings.released)


@pytest.mark.parametrize("transport", ["ring"])
def test_a_trainer_that_waits_for_a_slot_sees_that_copies_are_done(loader, sidecar, cuda):
    # All slots are on their way back, so the next batch comes only when one of them is given back while it is awaited.
    cuda.at_once = False
    iterator = iter(loader("fake://rows=400", pin_memory=True))
    happening = []

    def happened(event):
        # As on a GPU that is behind: an event happens a while after it was first asked for.
        happening.append(event)
        return happening.count(event) > 3

    cuda.happened = happened
    assert samples(iterator) == order(0, 0, 400)


@pytest.mark.parametrize("transport", ["ring"])
@pytest.mark.parametrize("why", ["read-only", "ulimit"])
def test_memory_that_cannot_be_locked_is_copied_to_such(loader, sidecar, cuda, caplog, why):
    sidecar.rings.read_only = why == "read-only"
    cuda.allows = why == "read-only"
    with caplog.at_level(logging.WARNING, "millrace"):
        batches = list(loader("fake://rows=40", pin_memory=True))
    assert samples(batches) == order(0, 0, 40)
    assert all(is_right(b) for b in batches)
    assert cuda.locked == {}
    assert cuda.pinned >= 20
    assert len([r for r in caplog.records if "cannot be page-locked" in r.message]) == (why == "ulimit")


def test_batches_are_sent_ahead(loader, cuda, ring):
    made = loader("fake://rows=40", device="cuda:1")
    iterator = iter(made)
    batch = next(iterator)
    device = torch.device("cuda:1")
    assert [r[1] for r in cuda.received] == [device]
    assert is_right(batch)
    seen = [batch, *iterator]
    assert samples(seen) == order(0, 0, 40)
    assert len(cuda.received) == 10
    assert all(not cuda.is_locked(b["image"]) for b in seen)
    assert samples(made) == order(0, 1, 40)


@pytest.mark.parametrize("transport", ["ring"])
def test_a_slot_is_kept_until_the_copy_is_there(loader, sidecar, cuda):
    cuda.at_once = False
    iterator = iter(loader("fake://rows=400", device="cuda"))
    kept = [next(iterator) for _ in range(2)]
    sent = [event for _, _, event in cuda.received]
    gc.collect()
    assert sidecar.rings.released == []
    for event in cuda.events:
        event.happened = True
    kept.append(next(iterator))
    for event in cuda.events:
        event.happened = True
    kept.append(next(iterator))
    wait_until(lambda: {0, 1} <= set(sidecar.rings.released))
    assert len(sent) == 2
    assert all(is_right(b) for b in kept)


def test_columns_of_every_kind_are_sent(loader, cuda):
    batch = next(iter(loader("fake://rows=20&columns=image,text,flag,ragged", device="cuda")))
    plain = next(iter(loader("fake://rows=20&columns=image,text,flag,ragged", job="other")))
    assert batch.keys() == plain.keys()
    assert batch["text"] == plain["text"]
    assert torch.equal(batch["flag"], plain["flag"])
    assert [t.tolist() for t in batch["ragged"]] == [t.tolist() for t in plain["ragged"]]


def test_the_state_does_not_count_what_was_sent_ahead(loader, cuda):
    made = loader("fake://rows=40", device="cuda")
    iterator = iter(made)
    first = list(itertools.islice(iterator, 3))
    state = made.state_dict()
    assert state == made.state_dict(after=first[-1])
    made.load_state_dict(state)
    assert samples(first) + samples(made) == order(0, 0, 40)


def test_an_error_comes_after_the_batches_before_it(loader, sidecar, cuda):
    made = loader("fake://rows=40&bad=3", device="cuda")
    iterator = iter(made)
    assert samples(itertools.islice(iterator, 3)) == order(0, 0, 40)[:12]
    with pytest.raises(mr.MillraceError):
        next(iterator)


def test_without_a_gpu(loader, cuda):
    cuda.there = False
    with pytest.raises(mr.MillraceError, match="device='cuda' needs a GPU, and torch imported"):
        iter(loader(device="cuda"))
    with pytest.warns(UserWarning, match="pin_memory=True does nothing without torch and a GPU"):
        assert len(list(loader(pin_memory=True, job="pinned"))) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader(device="cpu", job="plain"))) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "mps"}, "device='mps' is neither 'cpu' nor a GPU"),
        ({"device": "cuda:x"}, "device='cuda:x' is neither"),
        ({"pin_memory_device": "xpu"}, "pin_memory_device='xpu': memory can be page-locked for CUDA alone"),
    ],
)
def test_devices_are_checked(options, message):
    with pytest.raises(mr.InvalidError, match=message):
        mr.DataLoader("fake://rows=4", 2, **options)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda", 0), None, "cpu"])
def test_devices_as_torch_has_them(device):
    mr.DataLoader("fake://rows=4", 2, device=device, pin_memory_device="cuda:0")
