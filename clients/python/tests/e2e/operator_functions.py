"""Functions that the tests have run on workers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np


def noisy(row, ctx):
    """Draw from the sample's own key, and tell which process was it."""
    if marks := os.environ.get("OPERATOR_MARKS"):
        Path(marks, f"pid-{os.getpid()}").touch()
    return {
        "caption": f"{ctx.key}: {ctx.rng.integers(1 << 30)}",
        "mean": row["image"].mean(),
        "image": row["image"] ^ ctx.rng.integers(256, dtype=np.uint8),
    }


def two_of_three(row, ctx):
    return ctx.sample % 3 != 0


def many(row, ctx):
    for i in range(ctx.sample % 3):
        yield {"part": i, "embedding": ctx.rng.random(4, dtype=np.float32) + i}


def normal(batch):
    assert not batch["image"].flags.writeable
    return {"image": batch["image"].astype(np.float32).mean(axis=(1, 2))}


def normal_arrow(batch):
    import pyarrow as pa

    images = batch.column("image").to_numpy_ndarray().astype(np.float32).mean(axis=(1, 2))
    flat = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), images.shape[1])
    return pa.record_batch([flat], names=["image"])


def halves(batch):
    """Drop rows, and give the rest in two pieces."""
    keep = np.array([int(text) % 2 == 0 for text in batch["label"]])
    rest = {name: values[keep] for name, values in batch.items()}
    for part in (slice(0, 2), slice(2, None)):
        yield {name: values[part] for name, values in rest.items()}


class Kept:
    """Keeps what it was given, to see whether anything changes it later."""

    def __init__(self, limit):
        self.limit = limit
        self.seen = []

    def __call__(self, row):
        for image, copy in self.seen:
            assert np.array_equal(image, copy)
        self.seen = [*self.seen, (row["image"], row["image"].copy())][-self.limit :]
        return row


def picky(row, ctx):
    if ctx.sample == 30:
        raise ValueError(f"no caption in {ctx.key}")
    return row


def stuck(row, ctx):
    if ctx.sample == 30:
        time.sleep(600)
    return row


def fatal(row, ctx):
    if ctx.sample == 30:
        os.abort()
    return row


def gate(row, ctx):
    """Wait at the first sample of the second partition until a file is there."""
    marks = Path(os.environ["OPERATOR_MARKS"])
    (marks / f"at-{ctx.sample}").touch()
    if ctx.sample == 8:
        deadline = time.monotonic() + 60
        while not (marks / "open").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    return row
