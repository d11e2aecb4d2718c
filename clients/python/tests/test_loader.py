from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref

import pytest
from fake_sidecar import order

import millrace as mr


def samples(batches) -> list[int]:
    return [int(s) for b in batches for s, v in zip(b.meta.samples, b.meta.valid, strict=True) if v]


def rounds(*loaders):
    """One epoch of several ranks in one thread: their streams need each other to begin."""
    iterators = [iter(each) for each in loaders]
    return list(zip(*iterators, strict=True))


def test_an_epoch_is_every_sample_once_in_the_order_of_seed_and_epoch(loader):
    made = loader("fake://rows=22", seed=3)
    assert len(made) == 6
    for epoch in range(3):
        batches = list(made)
        assert samples(batches) == order(3, epoch, 22)
        assert [(b.meta.epoch, b.meta.step, b.meta.part) for b in batches] == [(epoch, s, 0) for s in range(6)]
        assert [b.meta.valid_rows for b in batches] == [4, 4, 4, 4, 4, 2]


def test_tail_drop(loader):
    made = loader("fake://rows=22", drop_last=True)
    assert len(made) == 5
    assert [len(list(made)) for _ in range(3)] == [5, 5, 5]


def test_a_batch_is_a_dict_with_meta(loader):
    batch = next(iter(loader()))
    assert list(batch) == ["image", "label"]
    assert dict(**batch).keys() == {"image", "label"}
    assert batch.meta.keys == [f"train.tar!{s:05d}" for s in order(0, 0, 20)[:4]]
    assert batch.meta.rows == batch.meta.valid_rows == 4
    assert batch.meta.cursor.endswith("0.1.4")


def test_break_goes_on_with_the_next_epoch(loader):
    made = loader()
    for taken in (1, 2, 5):
        epoch = taken if taken < 5 else 3
        batches = list(itertools.islice(made, taken))
        assert {b.meta.epoch for b in batches} == {epoch - 1}
    assert next(iter(made)).meta.epoch == 3


def test_an_iterator_that_gave_nothing_begins_no_epoch(loader):
    made = loader()
    iter(made)
    iter(made)
    assert next(iter(made)).meta.epoch == 0
    assert next(iter(made)).meta.epoch == 1


def test_an_older_iterator_says_that_it_is_over(loader):
    made = loader()
    old = iter(made)
    next(old)
    new = iter(made)
    with pytest.raises(mr.MillraceError, match="began another epoch"):
        next(old)
    assert next(new).meta.epoch == 1


def test_the_end_stays_the_end(loader):
    iterator = iter(loader())
    assert len(list(iterator)) == 5
    assert list(iterator) == []
    assert next(iterator, None) is None


def test_set_epoch_is_idempotent_and_optional(loader):
    made = loader()
    assert samples(made) == order(0, 0, 20)
    made.set_epoch(1)
    made.set_epoch(1)
    assert samples(made) == order(0, 1, 20)
    made.set_epoch(7)
    assert samples(made) == order(0, 7, 20)
    assert samples(made) == order(0, 8, 20)
    made.sampler.set_epoch(0)
    assert samples(made) == order(0, 0, 20)


def test_set_epoch_during_an_epoch_is_for_the_next(loader):
    made = loader()
    iterator = iter(made)
    next(iterator)
    made.set_epoch(4)
    assert {b.meta.epoch for b in iterator} == {0}
    assert next(iter(made)).meta.epoch == 4


def test_set_epoch_keeps_the_place_of_a_state_in_that_epoch(loader):
    made = loader()
    list(itertools.islice(made, 2))
    state = made.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert next(iter(resumed)).meta.step == 2
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    batch = next(iter(resumed))
    assert (batch.meta.epoch, batch.meta.step) == (1, 0)


def test_global_batches_are_the_same_for_every_world_size(loader):
    def global_batches(world: int, batch_size: int | None):
        ranks = [loader("fake://rows=24", batch_size, global_batch_size=8, job=f"w{world}{batch_size}", rank=r, world_size=world)
                 for r in range(world)]  # fmt: skip
        seen = {}
        for parts in rounds(*ranks):
            step = parts[0].meta.step
            seen.setdefault(step, []).extend(samples(parts))
        assert len(ranks[0]) == len(seen) * (8 // world // (batch_size or 8 // world))
        return seen

    expected = {step: order(0, 0, 24)[step * 8 : step * 8 + 8] for step in range(3)}
    for world, batch_size in [(1, None), (2, None), (4, None), (8, None), (1, 2), (2, 2), (4, 2), (4, 1), (2, 4)]:
        assert global_batches(world, batch_size) == expected


def test_state_is_that_of_the_last_batch_returned(loader, sidecar):
    made = loader(prefetch_batches=4)
    assert made.state_dict() == {"millrace": ""}
    iterator = iter(made)
    assert made.state_dict() == {"millrace": ""}
    first, second = next(iterator), next(iterator)
    assert made.state_dict() == {"millrace": second.meta.cursor}
    assert made.state_dict(after=first) == {"millrace": first.meta.cursor} != made.state_dict()
    assert made.state_dict(after=first.meta) == {"millrace": first.meta.cursor}
    with pytest.raises(TypeError, match="takes a batch of this loader"):
        made.state_dict(after=dict(first))


def test_state_within_an_accumulated_batch_is_the_one_before_it(loader):
    made = loader(batch_size=2, global_batch_size=8)
    batches = list(made)
    assert [b.meta.part for b in batches[:8]] == [0, 1, 2, 3] * 2
    assert [b.meta.cursor for b in batches[:3]] == [""] * 3
    assert [b.meta.cursor for b in batches[4:7]] == [batches[3].meta.cursor] * 3
    made.load_state_dict(made.state_dict(after=batches[5]))
    assert next(iter(made)).meta.step == 1


def test_empty_state_is_the_beginning(loader):
    made = loader()
    list(made)
    for empty in ({}, {"millrace": ""}):
        made.load_state_dict(empty)
        batch = next(iter(made))
        assert (batch.meta.epoch, batch.meta.step) == (0, 0)


def test_state_at_the_end_of_an_epoch_begins_the_next(loader):
    made = loader()
    batches = list(made)
    resumed = loader()
    resumed.load_state_dict(made.state_dict(after=batches[-1]))
    assert samples(resumed) == order(0, 1, 20)


@pytest.mark.parametrize("state", [{"other": ""}, {"millrace": 3}, None, "text"])
def test_foreign_state_is_refused(loader, state):
    with pytest.raises(mr.InvalidError, match="no state of a millrace loader"):
        loader().load_state_dict(state)


def test_state_of_another_recipe_is_an_error_unless_told(loader, monkeypatch):
    made = loader("fake://rows=20")
    next(iter(made))
    state = made.state_dict()
    other = loader("fake://rows=20&x=1")
    other.load_state_dict(state)
    with pytest.raises(mr.ConflictError, match=r'^state is of another recipe; set on_mismatch="continue" .* same position\.$'):
        iter(other)
    other = loader("fake://rows=20&x=1", on_mismatch="continue")
    other.load_state_dict(state)
    assert next(iter(other)).meta.step == 1


def test_load_drops_the_live_iterator(loader):
    made = loader()
    iterator = iter(made)
    batches = [next(iterator) for _ in range(3)]
    made.load_state_dict(made.state_dict(after=batches[0]))
    with pytest.raises(mr.MillraceError, match="this iterator is over"):
        next(iterator)
    assert samples(made) == order(0, 0, 20)[4:]
    assert next(iter(made)).meta.epoch == 1


def test_epochs_end_the_job(loader):
    made = loader(epochs=2)
    assert [len(list(made)) for _ in range(2)] == [5, 5]
    with pytest.raises(mr.InvalidError, match=r"has 2 epochs .* and all are over"):
        iter(made)
    made.set_epoch(1)
    assert len(list(made)) == 5


def test_unknown_length(loader):
    made = loader("fake://unknown=1")
    with pytest.raises(TypeError, match="recipe may drop or add rows"):
        len(made)
    assert len(list(made)) == 5
    assert made


def test_truth_needs_no_connection():
    assert mr.DataLoader("fake://", 4, endpoint="unix:///nowhere.sock")


def test_close_ends_session_and_thread(loader, sidecar):
    before = threading.active_count()
    with loader() as made:
        iterator = iter(made)
        next(iterator)
        assert sidecar.members
    assert not sidecar.members
    assert not any(t.name == "millrace reader" for t in threading.enumerate())
    deadline = time.monotonic() + 20
    while threading.active_count() > before:  # the double of the sidecar has threads too
        assert time.monotonic() < deadline
        time.sleep(0.002)
    made.close()
    for use in (lambda: iter(made), lambda: next(iterator), lambda: len(made), lambda: made.load_state_dict({})):
        with pytest.raises(mr.MillraceError, match="closed"):
            use()


def test_a_dropped_loader_goes_without_the_cycle_collector(sidecar):
    gc.disable()
    try:
        made = mr.DataLoader("fake://rows=20", 4)
        iterator = iter(made)
        next(iterator)
        gone = weakref.ref(made)
        del made, iterator
        assert gone() is None
        assert not sidecar.members
    finally:
        gc.enable()


def test_stats(loader):
    made = loader("fake://rows=22")
    assert made.stats() == mr.Stats()
    assert made.stats().wait_fraction == 0
    list(made)
    stats = made.stats()
    assert (stats.batches, stats.rows) == (6, 22)
    assert 1 <= stats.waits <= 6
    assert 0 < stats.wait_fraction <= 1


def test_collate_fn_sees_the_batch_and_does_not_disturb_the_state(loader):
    made = loader(collate_fn=lambda batch: (batch["image"], batch["label"]))
    image, label = next(iter(made))
    assert image.shape == (4, 2, 3)
    assert label.shape == (4,)
    assert made.state_dict()["millrace"]


def test_two_loaders_share_a_script(loader):
    train, val = loader("fake://rows=20", job="s"), loader("fake://rows=8", job="s")
    for _ in range(2):
        assert len(list(train)) == 5
        assert len(list(val)) == 2
    assert (train.job, val.job) == ("s", "s/1")
