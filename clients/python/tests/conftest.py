from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from fake_sidecar import FakeSidecar
from hypothesis import settings

import millrace as mr
from fake_ring import FakeRing
from millrace._process import PROCESS

# How long an example takes depends on what else the machine does.
settings.register_profile("millrace", deadline=None)
settings.load_profile("millrace")

# A run in the background of a shell inherits an ignored SIGINT, under which no test of Ctrl-C means anything.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Script:
    """A Python process that runs some lines with the fake binary at hand."""

    def __init__(self, fake_binary: str, tmp_path: Path) -> None:
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("MILLRACE", "TORCHELASTIC"))}
        self.env |= {"MILLRACE_BIN": fake_binary, "XDG_RUNTIME_DIR": str(tmp_path)}
        self.sockets = tmp_path / f"millrace-{os.getuid()}"
        self.running: list[subprocess.Popen[str]] = []

    def start(self, text: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(text)],
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def run(self, text: str, **env: str) -> str:
        output, errors = self.start(text, **env).communicate(timeout=150)
        assert self.running[-1].returncode == 0, errors
        assert errors == ""
        return output

    def left(self) -> list[str]:
        """Processes that still serve a socket of ours."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if entry.name.isdigit() and str(self.sockets) in line:
                found.append(line)
        return found


@pytest.fixture
def make_script(tmp_path):
    """Make scripts that find a given binary; their processes end with the test."""
    made = []

    def make(binary: str) -> Script:
        made.append(Script(binary, tmp_path))
        return made[-1]

    yield make
    for each in made:
        for process in each.running:
            process.kill()
            process.communicate()


@pytest.fixture
def script(make_script, fake_binary):
    """Scripts that start the sidecar's double."""
    return make_script(fake_binary)


@pytest.fixture(params=["flight", "ring"])
def transport(request):
    """How batches come: every test with a sidecar runs with each."""
    return request.param


@pytest.fixture
def sidecar(tmp_path, monkeypatch, transport):
    """A fake sidecar in this process, which MILLRACE_ENDPOINT names."""
    path = tmp_path / "s.sock"
    server = FakeSidecar(f"grpc+unix://{path}")
    server.endpoint = f"unix://{path}"
    monkeypatch.setenv("MILLRACE_ENDPOINT", server.endpoint)
    monkeypatch.setenv("MILLRACE_TRANSPORT", transport)
    server.rings = None
    if transport == "ring":
        server.ring = 1
        server.rings = FakeRing(server, str(path))
    yield server
    for session in list(PROCESS._open):
        session.close()
    if server.rings is not None:
        server.rings.close()
    server.shutdown()


@pytest.fixture
def loader(sidecar):
    """Make loaders that are closed at the end of the test."""
    made = []

    def make(source="fake://rows=20", batch_size=4, **options):
        made.append(mr.DataLoader(source, batch_size, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def fake_binary(tmp_path) -> str:
    """A program that stands in for the millrace binary."""
    path = tmp_path / "millrace"
    here = Path(__file__).parent
    source = Path(mr.__file__).parent.parent
    path.write_text(f'#!/bin/sh\nPYTHONPATH={here}:{source} exec {sys.executable} {here / "fake_sidecar.py"} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in (
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PBS_JOBID", "LSB_JOBID", "MILLRACE_ENDPOINT",
        "MILLRACE_BIN", "MILLRACE_ON_MISMATCH", "MILLRACE_TRANSPORT",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
