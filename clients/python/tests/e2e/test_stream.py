"""What a trainer gets from the real thing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import millrace as mr
from millrace._rpc import location

from .conftest import SAMPLES, label, pixels

ROOT = Path(__file__).parents[4]


def numbers(batches) -> list[int]:
    return [int(s) for b in batches for s, v in zip(b.meta.samples, b.meta.valid, strict=True) if v]


def raw(batch) -> bytes:
    return np.asarray(batch["image"]).tobytes() + np.asarray(batch["label"]).tobytes()


def train(loaders, take) -> list:
    """Run one rank a thread; return what ``take`` makes of each."""
    results, failures = [None] * len(loaders), []

    def run(i: int) -> None:
        try:
            results[i] = take(loaders[i])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(loaders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def test_pixels_labels_and_keys_are_those_of_the_files(loader, source):
    recipe = mr.Recipe(source).decode_image("image").center_crop("image", 8).label("label")
    recipe = recipe.output(image={"layout": "HWC", "dtype": "uint8"}, label={"dtype": "int64"})
    batches = list(loader(recipe, 4))
    assert numbers(batches) == list(range(SAMPLES))
    for batch in batches:
        assert batch["image"].shape == (4, 8, 8, 3)
        for row, sample in enumerate(batch.meta.samples.tolist()):
            assert np.array_equal(np.asarray(batch["image"][row]), pixels(sample))
            assert int(batch["label"][row]) == label(sample)
            assert batch.meta.keys[row].endswith(f"{sample:05d}")


@pytest.mark.parametrize("shuffle", [False, "block", "full"])
def test_every_sample_once_and_another_order_each_epoch(loader, recipe, shuffle):
    made = loader(recipe, 4, shuffle=shuffle, seed=3)
    epochs = [numbers(made) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SAMPLES))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == (1 if not shuffle else 3)
    assert numbers(loader(recipe, 4, shuffle=shuffle, seed=3)) == epochs[0]


@pytest.mark.parametrize(
    ("tail", "steps", "valid"), [("pad", 14, SAMPLES), ("drop", 13, SAMPLES // 4 * 4), ("short", 14, SAMPLES)]
)
def test_tails(loader, recipe, tail, steps, valid):
    made = loader(recipe, 4, tail=tail)
    assert len(made) == steps
    batches = list(made)
    assert len(batches) == steps
    assert sum(b.meta.valid_rows for b in batches) == valid
    assert len(numbers(batches)) == valid


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [None, 2, 1])
def test_global_batches_are_the_same_for_every_world_size(loader, recipe, world, batch_size):
    def steps(world: int, batch_size: int | None) -> dict[int, list[bytes]]:
        job = f"global-{threading.get_ident()}-{world}-{batch_size}"
        ranks = [
            loader(recipe, batch_size, global_batch_size=8, shuffle=True, seed=1, job=job, rank=r, world_size=world)
            for r in range(world)
        ]
        seen: dict[int, list[bytes]] = {}
        for parts in zip(*train(ranks, list), strict=True):
            for batch in parts:
                seen.setdefault(batch.meta.step, []).extend(np.asarray(image).tobytes() for image in batch["image"])
        return seen

    assert steps(world, batch_size) == steps(1, None)


def test_stop_at_every_step_and_start_anew_with_another_world_size(loader, recipe):
    def live(state: dict, world: int, steps: int) -> tuple[dict, list[bytes]]:
        job = f"resume-{np.random.default_rng().integers(1 << 60)}"
        ranks = [
            loader(recipe, None, global_batch_size=8, shuffle=True, seed=2, job=job, rank=r, world_size=world)
            for r in range(world)
        ]

        def run(each):
            each.load_state_dict(state)
            seen = []
            while len(seen) < steps:
                for batch in each:
                    seen.append([np.asarray(batch[name]) for name in ("image", "label")])
                    if len(seen) == steps:
                        break
            return each.state_dict(), seen

        results = train(ranks, run)
        for each in ranks:
            each.close()
        assert len({result[0]["millrace"] for result in results}) == 1
        whole = [b"".join(np.concatenate(columns).tobytes() for columns in zip(*parts, strict=True))
                 for parts in zip(*(seen for _, seen in results), strict=True)]  # fmt: skip
        return results[0][0], whole

    steps, epochs = 7, 3
    _, unbroken = live({}, 1, steps * epochs)
    assert len(set(unbroken)) == steps * epochs
    for stop in range(1, steps + 2):
        world = (1, 2, 4)[stop % 3]
        state, first = live({}, world, stop)
        state, second = live(state, (2, 4, 1)[stop % 3], 5)
        _, third = live(state, 1, steps * epochs - stop - 5)
        assert first + second + third == unbroken


def test_state_is_short_and_from_the_last_batch_returned(loader, recipe):
    made = loader(recipe, 4)
    iterator = iter(made)
    first, second = next(iterator), next(iterator)
    assert made.state_dict()["millrace"] == second.meta.cursor
    assert 0 < len(first.meta.cursor) <= 500
    made.load_state_dict(made.state_dict(after=first))
    assert raw(next(iter(made))) == raw(second)


def test_many_short_epochs(loader, recipe):
    ranks = [loader(recipe, 8, job="short epochs", rank=r, world_size=2, shuffle=True) for r in range(2)]

    def run(each):
        return [numbers(each) for _ in range(60)]

    for mine, others in zip(*train(ranks, run), strict=True):
        assert sorted(mine + others) == list(range(SAMPLES))


def test_break_and_set_epoch(loader, recipe):
    made = loader(recipe, 4)
    assert next(iter(made)).meta.epoch == 0
    assert next(iter(made)).meta.epoch == 1
    made.set_epoch(7)
    assert next(iter(made)).meta.epoch == 7


def test_train_and_validation_of_one_job_name(loader, recipe):
    train_set, val_set = loader(recipe, 4, shuffle=True, job="both"), loader(recipe, 8, job="both")
    for _ in range(2):
        assert len(list(train_set)) == 14
        assert len(list(val_set)) == 7


def test_any_flight_client_reads_the_same_stream(loader, recipe, endpoint, tmp_path):
    """The example of docs/formats/flight.md, as it stands."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/formats/flight.md").read_text(), re.DOTALL)
    made = loader(recipe, 4, job="plain")
    expected = [int(n) for batch in made for n, v in zip(batch["label"], batch.meta.valid, strict=True) if v]
    made.set_epoch(0)
    iter(made)  # the session is at the beginning again
    script = tmp_path / "reader.py"
    script.write_text(example.replace("list_flights()", "list_flights(b'plain')"))  # other tests have jobs too
    done = subprocess.run([sys.executable, script, location(endpoint)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["job"] == "plain"
    assert printed["labels"][: len(expected)] == expected
    assert "fixed_shape_tensor" in printed["image"]


@pytest.mark.parametrize("tail", ["pad", "drop", "short"])
def test_a_state_of_the_end_of_an_epoch_whose_rows_nobody_knew_begins_the_next(loader, source, tmp_path, tail):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"source: {source}\nfields: {{label: cls}}\noperators:\n  - virtual_emit: {{field: image, rows: 2, bytes: 8}}\n"
    )
    made = loader(str(recipe), 10, tail=tail)
    whole = list(made)
    assert len(whole) == 2 * SAMPLES // 10 + (tail != "drop")
    resumed = loader(str(recipe), 10, tail=tail)
    resumed.load_state_dict(made.state_dict())
    again = list(resumed)
    assert [(b.meta.epoch, b.meta.step) for b in again] == [(1, i) for i in range(len(whole))]
    assert [numbers([b]) for b in again] == [numbers([b]) for b in made]
