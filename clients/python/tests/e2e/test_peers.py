"""Processes that share a data-parallel coordinate: the same batches, made once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

import millrace as mr

from .conftest import SAMPLES

PEER = """
    import hashlib, os, sys
    import numpy as np
    import millrace as mr

    recipe = (
        mr.Recipe({source!r})
        .decode_image("image")
        .random_resized_crop("image", size=6)
        .label("label")
        .output(image={{"layout": "CHW", "dtype": "float32"}}, label={{"dtype": "int64"}})
    )
    loader = mr.DataLoader(
        recipe, 4, True, job={job!r}, endpoint={endpoint!r}, rank=0, world_size=1, peer={peer}, peers={peers},
        transport={transport!r}, epochs=2, timeout=20,
    )
    say = lambda *words: print(*words, flush=True)
    raw = lambda batch: np.asarray(batch["image"]).tobytes() + np.asarray(batch["label"]).tobytes()
    digest = lambda batch: hashlib.sha256(raw(batch)).hexdigest()[:12]
"""


@pytest.fixture
def peer(endpoint, source, transport):
    """Start processes that are peers of one rank, run by lines that the test writes."""
    started = []
    job = f"peers-{os.urandom(6).hex()}"

    def start(peer: int, text: str, peers: int = 2, how: str = transport) -> subprocess.Popen[str]:
        head = PEER.format(source=source, job=job, endpoint=endpoint, peer=peer, peers=peers, transport=how)
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(text)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def go(process) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


ALL = """
    for _ in range(2):
        for batch in loader:
            say(batch.meta.epoch, batch.meta.step, digest(batch))
"""


def test_peers_get_the_same_batches(peer):
    first, second = (peer(i, ALL) for i in (0, 1))
    a, b = first.communicate(timeout=90)[0], second.communicate(timeout=90)[0]
    assert a == b
    assert len(a.splitlines()) == 2 * -(-SAMPLES // 4)
    assert len(set(a.splitlines())) == len(a.splitlines())


def test_peers_may_read_by_different_transports(peer):
    first, second = peer(0, ALL, how="ring"), peer(1, ALL, how="flight")
    assert first.communicate(timeout=90)[0] == second.communicate(timeout=90)[0]


def test_what_a_peer_writes_no_other_sees(peer):
    writes = """
        import torch
        for batch in loader:
            before = digest(batch)
            batch["image"].div_(255)
            batch["label"].zero_()
            say(before, digest(batch))
            input()
    """
    reads = """
        for batch in loader:
            say("has")
            input()
            say(digest(batch))
    """
    writer, reader = peer(0, writes), peer(1, reads)
    for _ in range(-(-SAMPLES // 4)):
        before, after = writer.stdout.readline().split()
        assert before != after
        assert reader.stdout.readline() == "has\n"  # it has the batch that was written to by now
        go(reader)
        assert reader.stdout.readline().strip() == before
        go(writer)
    assert writer.wait(20) == 0
    assert reader.wait(20) == 0


def test_a_lone_rank_may_write_to_its_batches(peer):
    text = """
        import torch
        seen = []
        for _ in range(2):
            loader.set_epoch(0)
            loader.load_state_dict({})
            for batch in loader:
                seen.append(digest(batch))
                batch["image"].div_(255)
        say(seen[: len(seen) // 2] == seen[len(seen) // 2 :], len(seen))
    """
    assert peer(0, text, peers=1).communicate(timeout=60)[0].split() == ["True", str(2 * -(-SAMPLES // 4))]


def test_a_peer_that_is_killed_comes_back_and_nobody_misses_a_batch(peer):
    rest = """
        loader.load_state_dict({state!r})
        for batch in loader:
            say(batch.meta.epoch, batch.meta.step, digest(batch))
        for batch in loader:
            say(batch.meta.epoch, batch.meta.step, digest(batch))
    """
    some = """
        for batch in loader:
            say(batch.meta.epoch, batch.meta.step, digest(batch))
            say(loader.state_dict()["millrace"])
            input()
    """
    stays, dies = peer(0, ALL), peer(1, some)
    got = []
    for _ in range(3):
        got.append(dies.stdout.readline())
        cursor = dies.stdout.readline().strip()
        go(dies)
    dies.send_signal(signal.SIGKILL)
    dies.wait()
    back = peer(1, rest.format(state={"millrace": cursor}))
    again = back.communicate(timeout=90)[0].splitlines(keepends=True)
    assert got + again == stays.communicate(timeout=90)[0].splitlines(keepends=True)


def test_peers_at_different_positions_are_refused_by_name(peer):
    text = """
        loader.set_epoch({epoch})
        try:
            next(iter(loader))
        except mr.ConflictError as error:
            say(error)
    """
    texts = [peer(i, text.format(epoch=i)) for i in (0, 1)]
    for process in texts:
        said = process.communicate(timeout=60)[0]
        assert "peer 0 of rank 0: epoch 0, step 0; peer 1 of rank 0: epoch 1, step 0" in said


def test_a_peer_that_is_missing_is_named(loader, recipe):
    alone = loader(recipe, 4, rank=0, world_size=1, peer=0, peers=2, timeout=3)
    with pytest.raises(mr.StallError, match="waiting for peer 1 of rank 0"):
        next(iter(alone))
