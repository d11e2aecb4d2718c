"""What users of other loaders have run into, one test for each kind; the threads are named where there are some."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import millrace as mr

from .conftest import SAMPLES, label, write_shards
from .test_stream import numbers, train


@pytest.fixture(scope="session", params=["ring"])
def transport(request):
    return request.param


def few(tmp_path, count: int) -> str:
    """One shard with the first samples of the data set."""
    import tarfile

    folder = tmp_path / "few"
    write_shards(folder)
    with tarfile.open(folder / "train-00.tar") as whole, tarfile.open(folder / "few.tar", "w") as part:
        for member in list(whole)[: 2 * count]:
            part.addfile(member, whole.extractfile(member))
    return str(folder / "few.tar")


# huggingface/datasets#6623, #6437, #7854; webdataset/webdataset#65, #68; pytorch/pytorch#25162.
@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("tail", ["pad", "short", "drop"])
def test_one_shard_of_five_samples_and_more_ranks_than_it_has_parts(loader, tmp_path, world, tail):
    recipe, job = mr.Recipe(few(tmp_path, 5)).decode_image("image").center_crop("image", 8).label("label"), f"few-{world}-{tail}"
    ranks = [loader(recipe, 2, tail=tail, job=job, rank=r, world_size=world) for r in range(world)]
    if tail == "drop" and world > 2:
        with pytest.raises(mr.InvalidError, match=f'an epoch of 5 rows has no global batch of {2 * world} rows with tail "drop"'):
            train(ranks, list)
        return
    for _ in range(2):
        batches = train(ranks, list)
        assert len({len(each) for each in batches}) == 1
        seen = [n for each in batches for n in numbers(each)]
        whole = {"pad": 5, "short": 5, "drop": 5 // (2 * world) * 2 * world}[tail]
        assert sorted(seen) == sorted(set(seen))
        assert len(seen) == whole
        # An accuracy over rows that count is that of the data set.
        rows = [(int(n), v) for each in batches for b in each for n, v in zip(b["label"], b.meta.valid, strict=True)]
        assert sorted(n for n, v in rows if v) == sorted(label(s) for s in seen)


# huggingface/datasets#8669, #5360.
def test_all_ranks_are_busy_and_none_has_what_another_has(loader, recipe):
    ranks = [loader(recipe, 2, job="busy", rank=r, world_size=4, shuffle=True) for r in range(4)]
    shares = [numbers(each) for each in train(ranks, list)]
    assert all(12 <= len(share) <= 14 for share in shares)
    assert sorted(itertools.chain(*shares)) == list(range(SAMPLES))


# pytorch/torchtitan#811; NVIDIA-NeMo/Automodel#533; Lightning-AI/litData#248, #316; huggingface/datasets#7447.
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_saved_at_four_ranks_and_loaded_at_others(loader, recipe, world):
    def ranks(job: str, world: int):
        return [
            loader(recipe, None, global_batch_size=24, shuffle=True, job=f"{job}-{world}", rank=r, world_size=world)
            for r in range(world)
        ]

    def take(each):
        first = next(iter(each))
        return numbers([first]), each.state_dict()

    begun = train(ranks(f"four before {world}", 4), take)
    assert len({state["millrace"] for _, state in begun}) == 1
    later = ranks("others", world)

    def go_on(each):
        each.load_state_dict(begun[0][1])
        return [numbers(each) for _ in range(3)]

    epochs = list(zip(*train(later, go_on), strict=True))
    seen = [n for first, _ in begun for n in first] + list(itertools.chain(*epochs[0]))
    assert sorted(seen) == list(range(SAMPLES))
    assert [sorted(itertools.chain(*epoch)) for epoch in epochs[1:]] == [list(range(SAMPLES))] * 2


# pytorch/pytorch#5059, #41329: the same draws for all workers, and in all epochs.
def test_draws_differ_between_samples_and_epochs_and_not_between_runs(loader, source):
    recipe = mr.Recipe(source).decode_image("image").random_horizontal_flip("image", p=0.5).center_crop("image", 8)

    def flips(job: str) -> list[list[bool]]:
        made, plain = loader(recipe, 8, seed=5, job=job), mr.Recipe(source).decode_image("image").center_crop("image", 8)
        images = {
            int(s): np.asarray(i)
            for b in loader(plain, 8, job=job + "-plain")
            for s, i in zip(b.meta.samples, b["image"], strict=True)
        }
        return [
            [
                not np.array_equal(np.asarray(i), images[int(s)])
                for b in made
                for s, i in zip(b.meta.samples, b["image"], strict=True)
            ]
            for _ in range(3)
        ]

    first = flips("flips")
    assert first == flips("flips again")
    assert all(10 < sum(epoch) < 46 for epoch in first)
    assert len({tuple(epoch) for epoch in first}) == 3


# Accelerate, Lightning and CUDA prefetchers read ahead; NVIDIA-NeMo/Megatron-Bridge#3993, meta-pytorch/data#1251, #1437.
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_loop_that_reads_ahead_saves_the_state_after_what_it_trained_on(loader, recipe, ahead):
    def prefetcher(made):
        waiting = []
        for batch in made:
            waiting.append(batch)
            if len(waiting) > ahead:
                yield waiting.pop(0)
        yield from waiting

    unbroken = loader(recipe, 4, shuffle=True, prefetch_batches=2, job=f"unbroken-{ahead}")
    expected = [numbers([b]) for _ in range(2) for b in unbroken]
    for stop in (1, 7, 13, 14):
        made = loader(recipe, 4, shuffle=True, job=f"ahead-{ahead}-{stop}")
        seen = []
        for batch in itertools.islice(prefetcher(made), stop):
            seen.append(numbers([batch]))
            state = made.state_dict(after=batch)
        made.load_state_dict(state)
        seen += [numbers([b]) for b in prefetcher(made)]
        if stop < 14:
            seen += [numbers([b]) for b in prefetcher(made)]
        assert seen == expected


# pytorch/pytorch#62066, webdataset/webdataset#365, huggingface/datasets#7269: memory grows with each epoch.
def test_epochs_leave_neither_memory_nor_descriptors(script, source):
    output = script.run(
        f"""
        import os
        from pathlib import Path
        import millrace as mr
        from millrace._process import PROCESS

        def used(pid):
            pages = int(Path(f"/proc/{{pid}}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGESIZE"), len(os.listdir(f"/proc/{{pid}}/fd"))

        recipe = mr.Recipe({source!r}).decode_image("image").center_crop("image", 8).label("label")
        loader = mr.DataLoader(recipe, 4, shuffle=True)
        for epoch in range(200):
            count = sum(1 for _ in loader)
            if epoch == 40:
                before = used("self"), used(PROCESS.local._process.pid)
        after = used("self"), used(PROCESS.local._process.pid)
        for (memory, files), (later, more) in zip(before, after):
            print(count, max(0, later - memory) >> 20, more - files)
        """
    )
    for line in output.splitlines():
        count, grown, more = map(int, line.split())
        assert count == 14
        assert grown < 24, "MB more after 160 epochs"
        assert more <= 2


# pytorch/pytorch#22924.
@pytest.mark.parametrize("phase", ["made", "begun", "waiting", "over", "leaving"])
def test_ctrl_c_at_any_moment_is_one_traceback_at_most(script, source, phase):
    process = script.start(
        f"""
        import atexit, sys
        import millrace as mr

        def say(phase):
            print(phase, flush=True)
            if phase == {phase!r}:
                for _ in range(100_000_000):  # at work until it is interrupted
                    pass

        atexit.register(say, "leaving")
        loader = mr.DataLoader({source!r}, 4)
        say("made")
        iterator = iter(loader)
        say("begun")
        next(iterator)
        say("waiting")
        list(iterator)
        say("over")
        """
    )
    while process.stdout.readline() != phase + "\n":
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in ((0,) if phase == "leaving" else (-signal.SIGINT, 130))
    assert errors.count("Traceback") == 1
    assert errors.strip().splitlines()[-1].startswith("KeyboardInterrupt")
    deadline = time.monotonic() + 30
    while script.left() != []:
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Lightning-AI/litData#452, #398: locks and half-written caches of a run that was killed.
def test_a_killed_run_leaves_nothing_that_the_next_one_trips_over(script, source, tmp_path):
    text = f"""
        import os, signal
        import millrace as mr
        loader = mr.DataLoader({source!r}, 4)
        print(sum(1 for _ in loader), flush=True)
        if os.environ.get("KILLED"):
            os.kill(os.getpid(), signal.SIGKILL)
    """
    env = {"MILLRACE_CACHE_DIR": str(tmp_path / "cache")}
    killed = script.start(text, **env, KILLED="1")
    assert killed.communicate(timeout=60)[0] == "14\n"
    assert script.run(text, **env) == "14\n"
    assert not list(Path(tmp_path / "cache").rglob("*.lock"))
