"""Whoever is killed, whenever: each sample comes once, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import millrace as mr
from millrace._rpc import Connection

from .conftest import SAMPLES
from .ring_proxy import COMMIT, READY, RELEASE, in_front_of

EPOCHS = 4
TRAINER = """
    import json, sys, time
    import millrace as mr

    recipe = mr.Recipe({source!r}).decode_image("image").resize("image", size=[64, 64])
    loader = mr.DataLoader(
        recipe, 4, True, job="job", endpoint={endpoint!r}, epochs={epochs}, transport="ring", timeout={timeout}
    )
    loader.load_state_dict(json.loads({state!r}))
    deadline = time.monotonic() + 60
    while True:
        try:
            for batch in loader:
                samples = batch.meta.samples[batch.meta.valid].tolist()
                print(json.dumps([batch.meta.epoch, batch.meta.step, samples, loader.state_dict()]), flush=True)
        except mr.InvalidError as error:
            if "all are over" not in str(error):
                raise
            break
        except mr.UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
"""


class Cluster:
    """A dispatcher, two workers and a sidecar, each a process."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary = binary
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self._log = open(folder / "log", "wb")
        self.socket = folder / "s"
        self._role("dispatcher", "--listen", f"unix://{folder}/d")
        # Their budgets hold less than the job, so that some of it is still to be made when one of them is killed.
        self.workers = [
            self._role("worker", "--listen", f"unix://{folder}/w{i}", "--name", f"w{i}", "--budget", "1MiB", *self._dispatcher())
            for i in range(2)
        ]
        self.sidecar = self.start_sidecar()

    def _dispatcher(self) -> tuple[str, ...]:
        return ("--dispatcher", f"unix://{self._folder}/d")

    def start_sidecar(self) -> subprocess.Popen[bytes]:
        self.sidecar = self._role("sidecar", "--listen", f"unix://{self.socket}", "--budget", "64MiB", *self._dispatcher())
        return self.sidecar

    def _role(self, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([self._binary, *arguments], stdout=subprocess.PIPE, stderr=self._log)
        self._running.append(process)
        assert process.stdout.readline(), (self._folder / "log").read_text()
        return process

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()
        self._log.close()


@pytest.fixture
def cluster(binary, tmp_path):
    made = Cluster(binary, tmp_path)
    yield made
    made.close()


class Trainers:
    """The processes that read a job, one after the other."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.lines: list[list] = []
        self.process: subprocess.Popen[str] | None = None

    def start(self, endpoint: str, timeout: float = 60) -> subprocess.Popen[str]:
        self.close()
        state = json.dumps(self.lines[-1][3] if self.lines else {})
        text = TRAINER.format(source=self._source, endpoint=endpoint, epochs=EPOCHS, state=state, timeout=timeout)
        self.process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, text=True)
        return self.process

    def read(self) -> None:
        """Read to the end of the process."""
        self.lines += [json.loads(line) for line in self.process.stdout]
        self.process.wait()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def check(self) -> None:
        """Each step came once, in order, and each sample once in an epoch."""
        steps = -(-SAMPLES // 4)
        assert [line[:2] for line in self.lines] == [[e, s] for e in range(EPOCHS) for s in range(steps)]
        for epoch in range(EPOCHS):
            assert sorted(s for line in self.lines if line[0] == epoch for s in line[2]) == list(range(SAMPLES))


@pytest.fixture
def trainers(source):
    made = Trainers(source)
    yield made
    made.close()


def arenas(pid: int) -> int:
    """Count the memories that a process has mapped or open to share."""
    maps = Path(f"/proc/{pid}/maps").read_text().count("memfd:millrace-ring")
    return maps + sum("millrace-ring" in os.readlink(f) for f in Path(f"/proc/{pid}/fd").iterdir() if f.is_symlink())


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("passed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("message", [READY, RELEASE, COMMIT])
@pytest.mark.parametrize("victim", ["worker", "sidecar", "trainer"])
def test_each_sample_comes_once_whoever_is_killed(cluster, trainers, victim, message, passed):
    count, struck = 0, threading.Event()

    def told(kind: str, has_passed: bool) -> None:
        nonlocal count
        if kind != message or has_passed != passed or struck.is_set():
            return
        count += 1
        if count < 5:
            return
        struck.set()
        process = {"worker": cluster.workers[0], "sidecar": cluster.sidecar, "trainer": trainers.process}[victim]
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is dead before the message goes on
        if victim == "sidecar":
            cluster.start_sidecar()

    proxy, endpoint = in_front_of(cluster.socket, told)
    try:
        trainers.start(endpoint)
        trainers.read()
        assert struck.is_set()
        if victim == "trainer":
            assert trainers.process.returncode == -signal.SIGKILL
            trainers.start(endpoint)
            trainers.read()
        assert trainers.process.returncode == 0
        trainers.check()
    finally:
        proxy.close()
    wait_until(lambda: arenas(cluster.sidecar.pid) == 0)
    assert not [name for name in os.listdir("/dev/shm") if "millrace" in name]  # others put there what they like


def test_a_trainer_that_hangs_goes_on_where_it_was(cluster, trainers):
    frozen = threading.Event()

    def told(kind: str, has_passed: bool) -> None:
        if kind == COMMIT and has_passed and not frozen.is_set():
            frozen.set()
            trainers.process.send_signal(signal.SIGSTOP)

    proxy, endpoint = in_front_of(cluster.socket, told)
    try:
        trainers.start(endpoint)
        assert frozen.wait(60)
        connection = Connection(endpoint, str)
        # Nobody takes from it what it may still look at, and others are served meanwhile.
        assert json.loads(connection.call("millrace.status", b"{}", 10))["jobs"][0]["ranks"][0]["state"] == "streaming"
        connection.close()
        trainers.process.send_signal(signal.SIGCONT)
        trainers.read()
        assert trainers.process.returncode == 0
        trainers.check()
    finally:
        proxy.close()


def test_a_frozen_sidecar_is_an_error_in_time_and_goes_on_when_it_is_back(cluster, source):
    recipe = mr.Recipe(source).decode_image("image").resize("image", size=[64, 64])
    with mr.DataLoader(recipe, 4, endpoint=f"unix://{cluster.socket}", transport="ring", job="job", timeout=1) as loader:
        batches = iter(loader)
        seen = [next(batches).meta.step]
        cluster.sidecar.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(mr.StallError, match="rank 0 got no batch in 1 s"):
                while True:
                    seen.append(next(batches).meta.step)
        finally:
            cluster.sidecar.send_signal(signal.SIGCONT)
        seen += [batch.meta.step for batch in batches]
    assert seen == list(range(-(-SAMPLES // 4)))
