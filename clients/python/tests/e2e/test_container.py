"""Places where little is allowed: small /dev/shm, nothing to write to, no memfd."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap

import pytest

from .conftest import SAMPLES

# Of 16 rows each: 4 slots of 32 MB are twice what fits into the /dev/shm of a container.
RECIPE = """
source: {source}
fields: {{label: cls}}
operators:
  - virtual_emit: {{field: image, rows: 1, bytes: 2097152}}
"""

TRAINER = """
import os
import numpy as np
import millrace as mr

seen = []
for batch in mr.DataLoader("/mnt/recipe.yaml", 16, transport="ring"):
    assert batch["image"].shape == (16, 2097152)
    assert (batch["image"][:, :8].copy().view(np.uint64)[:, 0] == batch.meta.samples).all()
    batch["image"] //= 2
    seen += batch.meta.samples[batch.meta.valid].tolist()
shared = os.statvfs("/dev/shm")
print(len(seen), len(set(seen)), shared.f_frsize * shared.f_blocks, os.listdir("/dev/shm"))
try:
    open("/var/probe", "w")
except OSError as error:
    print(error.strerror)
"""

# What a container runtime does: mounts of its own, 64 MB of shared memory, one volume to write to.
CONTAINER = """
set -e
mount -t tmpfs -o size=64m tmpfs /dev/shm
mount --bind {volume} /mnt
mount -o remount,bind,ro /
exec {python} /mnt/trainer.py
"""


def test_a_container_with_little_shared_memory_and_a_root_that_cannot_be_written(binary, source, tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(source=source))
    (tmp_path / "trainer.py").write_text(TRAINER)
    env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE")}
    env |= dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"), "/mnt") | {"MILLRACE_BIN": binary}
    script = CONTAINER.format(volume=tmp_path, python=sys.executable)
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", script], env=env, capture_output=True, text=True, timeout=150
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{SAMPLES} {SAMPLES} {64 << 20} []", "Read-only file system"]


# memfd_create answers as where a profile forbids it: the filter is four instructions of BPF.
FORBIDDING = """#!{python}
import ctypes, os, platform, struct, sys

number = {{"x86_64": 319, "aarch64": 279}}[platform.machine()]
code = b"".join(struct.pack("HBBI", *instruction) for instruction in [
    (0x20, 0, 0, 0),                    # the number of the system call
    (0x15, 0, 1, number),               # memfd_create
    (0x06, 0, 0, 0x00050000 | 1),       # is not permitted,
    (0x06, 0, 0, 0x7FFF0000),           # all else is
])
buffer = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())  # seccomp, by a filter
os.execv({binary!r}, [{binary!r}, *sys.argv[1:]])
"""

FORBIDDEN = """
    import logging
    import millrace as mr

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("millrace").addHandler(handler)
    logging.getLogger("millrace").setLevel(logging.INFO)
    recipe = mr.Recipe({source!r}){operators}
    with mr.DataLoader(recipe, 4) as loader:
        seen = [int(s) for _ in range(2) for batch in loader for s in batch.meta.samples[batch.meta.valid]]
    print(len(seen), len(set(seen)))
    print(*said)
    with mr.DataLoader(recipe, 4, transport="ring", job="ring") as loader:
        try:
            print(len(list(loader)))
        except mr.UnavailableError as error:
            print(error)
"""


@pytest.mark.parametrize("sizes", ["fixed", "varying"])
def test_where_memfd_is_forbidden(make_script, binary, source, tmp_path, sizes):
    wrapper = tmp_path / "forbidding"
    wrapper.write_text(FORBIDDING.format(python=sys.executable, binary=binary))
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    operators = '.decode_image("image").center_crop("image", 8)' if sizes == "fixed" else ""
    output = make_script(str(wrapper)).run(textwrap.dedent(FORBIDDEN).format(source=source, operators=operators)).splitlines()
    assert output[0] == f"{2 * SAMPLES} {SAMPLES}"
    if sizes == "fixed":
        assert output[1].startswith("batches come by Flight: creating shared memory (memfd): operation not permitted")
        assert output[2].startswith("creating shared memory (memfd): operation not permitted")
    else:
        assert output[1:] == ["", "14"]  # memory is asked for with the first batch, which goes through the socket as all others
