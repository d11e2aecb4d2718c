from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from fake_sidecar import FakeSidecar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millrace as mr

ROWS, GLOBAL, EPOCHS = 22, 4, 3
STEPS = -(-ROWS // GLOBAL)


class Run:
    """A training job that can be stopped after any step and started anew, with another world size."""

    def __init__(self, endpoint: str, job: str) -> None:
        self.endpoint, self.job, self.state, self.lives = endpoint, job, {}, 0
        self.seen: list[str] = []

    def live(self, world: int, steps: int) -> None:
        self.lives += 1
        ranks = [
            mr.DataLoader(f"fake://rows={ROWS}", None, global_batch_size=GLOBAL, seed=9, job=f"{self.job}-{self.lives}",
                          endpoint=self.endpoint, rank=r, world_size=world)
            for r in range(world)
        ]  # fmt: skip
        try:
            for each in ranks:
                each.load_state_dict(self.state)
            while steps > 0:
                for parts in itertools.islice(zip(*map(iter, ranks), strict=True), steps):
                    steps -= 1
                    columns = [b"".join(np.asarray(p[name]).tobytes() for p in parts) for name in ("image", "label")]
                    self.seen.append(hashlib.sha256(b"".join(columns)).hexdigest()[:8])
            states = [each.state_dict() for each in ranks]
            assert all(state == states[0] for state in states)
            if states[0]["millrace"]:
                self.state = states[0]
        finally:
            for each in ranks:
                each.close()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("s") / "s.sock"
    server = FakeSidecar(f"grpc+unix://{path}")
    yield f"unix://{path}"
    server.shutdown()


@pytest.fixture(scope="module")
def unbroken(endpoint) -> list[str]:
    run = Run(endpoint, "unbroken")
    run.live(1, EPOCHS * STEPS)
    return run.seen


@pytest.mark.parametrize("world", [1, 2, 4])
def test_stop_at_every_step(endpoint, unbroken, world):
    for stop in range(1, STEPS + 2):
        run = Run(endpoint, f"stop-{world}-{stop}")
        run.live(1, stop)
        run.live(world, EPOCHS * STEPS - stop)
        assert run.seen == unbroken


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(lives=st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 7)), min_size=1, max_size=5), name=st.uuids())
def test_resumes_of_resumes(endpoint, unbroken, lives, name):
    run, left = Run(endpoint, str(name)), EPOCHS * STEPS
    for world, steps in lives:
        run.live(world, min(steps, left))
        left -= min(steps, left)
    run.live(1, left)
    assert run.seen == unbroken
