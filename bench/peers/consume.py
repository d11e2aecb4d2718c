"""What the two sides of a benchmark share: a consumer that only touches each batch, and the clock around it.

Protocol, one JSON object a line on standard output:
    {"first_batch_s": …, "shape": [64, 3, 224, 224], "dtype": "uint8"}   when the first batch is there
    {"ready": true}                                                      after the warm-up; waits for a line on stdin
    {"images": …, "seconds": …, "wait_seconds": …}                       after the window; waits for stdin's end
The two waits let the runner read processor times exactly at both ends of the window.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = 4096  # bytes; one of each page is touched

# The protocol has standard output for itself; what libraries print goes to standard error.
_out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
# The runner ends a side with SIGTERM: leave through the usual exit, which stops what this process has started.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def arguments() -> dict[str, Any]:
    """What the runner wants: a JSON object in the first argument."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    return settings


def since_start() -> float:
    """Seconds since the kernel started this process; its clock counts hundredths."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def run(batches: Iterator[Any], settings: dict[str, Any]) -> None:
    """Take batches, numpy arrays [rows, …], for ever: warm up, measure one window, report.

    Args:
        batches: endless; the time spent inside its next() is the time waited for data.
        settings: warm_batches and warm_seconds, both at least; window_seconds, at least and in whole batches.
    """
    batch = next(batches)
    first = since_start()
    touch(batch)
    _say(first_batch_s=first, shape=list(batch.shape), dtype=str(batch.dtype))
    end, taken = time.perf_counter() + settings["warm_seconds"], 1
    while taken < settings["warm_batches"] or time.perf_counter() < end:
        touch(next(batches))
        taken += 1

    _say(ready=True)
    if not sys.stdin.readline():
        return
    images, waited = 0, 0.0
    now = start = time.perf_counter()
    while now - start < settings["window_seconds"]:
        batch = next(batches)
        waited += time.perf_counter() - now
        touch(batch)
        images += len(batch)
        now = time.perf_counter()
    _say(images=images, seconds=now - start, wait_seconds=waited)
    sys.stdin.readline()


def touch(batch: Any) -> int:
    """Read one byte of every page, so that a batch which is only mapped is really brought in."""
    return int(batch.reshape(-1).view("uint8")[::PAGE].sum())


def _say(**facts: Any) -> None:
    print(json.dumps(facts), file=_out, flush=True)
