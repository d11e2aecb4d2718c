from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from fake_sidecar import FakeSidecar

import millrace as mr
from millrace._process import PROCESS


@pytest.fixture
def sidecar(tmp_path, monkeypatch):
    """A fake sidecar in this process, which MILLRACE_ENDPOINT names."""
    path = tmp_path / "s.sock"
    server = FakeSidecar(f"grpc+unix://{path}")
    server.endpoint = f"unix://{path}"
    monkeypatch.setenv("MILLRACE_ENDPOINT", server.endpoint)
    yield server
    for session in list(PROCESS._open):
        session.close()
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
        "MILLRACE_BIN", "MILLRACE_ON_MISMATCH",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
