"""Samples that cannot be processed: an error, left out, or another in their place; the same on every run."""

from __future__ import annotations

import io
import os
import tarfile
import threading

import numpy as np
import pytest

import millrace as mr

from .conftest import SAMPLES, image_recipe

BAD = 25


def streams(loader, recipe, world=1, **options):
    """Batches of every rank, (sample, key, bytes of the image) of each valid row."""
    options["job"] = f"bad-{os.urandom(6).hex()}"
    loaders = [loader(recipe, rank=rank, world_size=world, seed=3, shuffle=True, **options) for rank in range(world)]
    out = [[] for _ in loaders]

    def read(rank):
        for batch in loaders[rank]:
            valid = np.asarray(batch.meta.valid)
            out[rank].append(
                [
                    (int(batch.meta.samples[i]), str(batch.meta.keys[i]), np.asarray(batch["image"][i]).tobytes())
                    for i in range(len(valid))
                    if valid[i]
                ]
            )

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def joined(out):
    """Rows in stream order: global batch by global batch, rank by rank."""
    return [row for step in zip(*out, strict=True) for rows in step for row in rows]


def test_skipped_samples_are_left_out_on_every_world_size(loader, spoilt):
    one = joined(streams(loader, image_recipe(spoilt), batch_size=None, global_batch_size=8, on_error="skip"))
    assert sorted(row[0] for row in one) == [s for s in range(SAMPLES) if s != BAD]
    for world in (2, 4):
        out = streams(loader, image_recipe(spoilt), world, batch_size=None, global_batch_size=8, on_error="skip")
        assert len({len(batches) for batches in out}) == 1
        assert joined(out) == one


def test_replaced_samples_keep_the_place_on_every_world_size(loader, spoilt, source):
    whole = joined(streams(loader, image_recipe(source), batch_size=None, global_batch_size=8))
    one = joined(streams(loader, image_recipe(spoilt), batch_size=None, global_batch_size=8, on_error="replace"))
    place = next(i for i, row in enumerate(whole) if row[0] == BAD)
    assert [row[0] for row in one[:place] + one[place + 1 :]] == [row[0] for row in whole[:place] + whole[place + 1 :]]
    assert one[place][0] != BAD
    assert one[place] in one[:place] + one[place + 1 :]
    assert joined(streams(loader, image_recipe(spoilt), 2, batch_size=None, global_batch_size=8, on_error="replace")) == one


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_run_that_resumes_goes_on_with_the_same_rows(loader, spoilt, policy):
    options = {"shuffle": True, "seed": 3, "on_error": policy}
    whole = [list(map(int, batch.meta.samples)) for batch in loader(image_recipe(spoilt), 4, **options)]
    first = loader(image_recipe(spoilt), 4, **options)
    seen = []
    for batch in first:
        seen.append(list(map(int, batch.meta.samples)))
        if len(seen) == 5:
            break
    second = loader(image_recipe(spoilt), 4, **options)
    second.load_state_dict(first.state_dict())
    assert seen + [list(map(int, batch.meta.samples)) for batch in second] == whole


def test_too_many_bad_samples_end_the_job_with_their_names(loader, tmp_path):
    recipe = mr.Recipe(_numbers(tmp_path, bad=range(20, 30)), {"label": "cls"}).label("label")
    assert len(list(loader(recipe, 1, on_error="skip", max_bad=10, max_bad_fraction=0.25))) == 30
    with pytest.raises(mr.BadDataError, match=r"4 bad samples in a row, and max_bad allows 3; .*00023.*raise max_bad"):
        list(loader(recipe, 1, on_error="skip", max_bad=3, max_bad_fraction=1))
    with pytest.raises(mr.BadDataError, match=r"5 bad samples in epoch 0, and max_bad_fraction allows 4; .*00024"):
        list(loader(recipe, 1, on_error="replace"))


def test_limits_that_make_no_sense(loader, recipe):
    with pytest.raises(mr.InvalidError, match="max_bad=0"):
        loader(recipe, 1, on_error="skip", max_bad=0)
    with pytest.raises(mr.InvalidError, match="max_bad_fraction=2"):
        loader(recipe, 1, on_error="skip", max_bad_fraction=2)


def _numbers(folder, bad):
    with tarfile.open(folder / "numbers.tar", "w") as tar:
        for i in range(40):
            data = b"seven" if i in bad else str(i).encode()
            info = tarfile.TarInfo(f"{i:05d}.cls")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return str(folder / "numbers.tar")
