"""Real binaries, real files. Nothing here is skipped: a missing binary is a failure."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest

import millrace as mr

SIDE = 8
SHARDS = (21, 9, 23)
SAMPLES = sum(SHARDS)


def pixels(sample: int) -> np.ndarray:
    """Image of a sample, [height, width, 3]."""
    return np.random.default_rng(sample).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def label(sample: int) -> int:
    return sample * 13 % 100


def png(image: np.ndarray) -> bytes:
    """Write a PNG without a library for it: rows unfiltered."""
    height, width, _ = image.shape
    raw = b"".join(b"\0" + row.tobytes() for row in image)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def write_shards(folder: Path, spoil: int | None = None) -> str:
    """Write a WebDataset and return its URI; the image of sample ``spoil`` is cut short."""
    folder.mkdir(exist_ok=True)
    sample = 0
    for shard, count in enumerate(SHARDS):
        with tarfile.open(folder / f"train-{shard:02d}.tar", "w") as tar:
            for _ in range(count):
                image = png(pixels(sample))
                if sample == spoil:
                    image = image[: len(image) // 2]
                for extension, data in (("png", image), ("cls", str(label(sample)).encode())):
                    info = tarfile.TarInfo(f"{sample:05d}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
                sample += 1
    return f"{folder}/train-{{00..{len(SHARDS) - 1:02d}}}.tar"


@pytest.fixture(scope="session")
def binary() -> str:
    path = os.environ.get("MILLRACE_BIN") or str(Path(__file__).parents[4] / "bin" / "millrace")
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is missing: run `make build`, or set MILLRACE_BIN")
    return path


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> str:
    return write_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="session")
def spoilt(tmp_path_factory) -> str:
    return write_shards(tmp_path_factory.mktemp("data") / "spoilt", spoil=25)


@pytest.fixture(scope="session")
def endpoint(binary, tmp_path_factory):
    """A sidecar for all tests, as `millrace local` brings it."""
    path = tmp_path_factory.mktemp("socket") / "s.sock"
    log = tmp_path_factory.mktemp("log") / "local.log"
    with (
        open(log, "wb") as errors,
        subprocess.Popen(
            [binary, "local", "--socket", str(path), "--watch-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        try:
            line = process.stdout.readline()
            assert line, log.read_text()
            assert json.loads(line).items() >= {"ready": True, "socket": str(path), "pid": process.pid}.items()
            yield f"unix://{path}"
        finally:
            process.stdin.close()
            try:
                assert process.wait(10) == 0, log.read_text()
            finally:
                process.kill()


@pytest.fixture
def recipe(source) -> mr.Recipe:
    return image_recipe(source)


def image_recipe(source: str) -> mr.Recipe:
    return (
        mr.Recipe(source)
        .decode_image("image")
        .random_horizontal_flip("image", p=0.5)
        .random_resized_crop("image", size=6, scale=(0.5, 1.0))
        .label("label")
        .output(image={"layout": "CHW", "dtype": "uint8"}, label={"dtype": "int64"})
    )


@pytest.fixture
def script(binary, tmp_path, make_script):
    """Python processes that start the real binary."""
    return make_script(binary)


@pytest.fixture
def loader(endpoint, transport):
    """Make loaders of jobs of their own, which are closed at the end of the test."""
    made = []

    def make(source, batch_size=4, **options):
        options.setdefault("job", f"test-{os.urandom(6).hex()}")
        options.setdefault("transport", transport)
        made.append(mr.DataLoader(source, batch_size, endpoint=endpoint, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
