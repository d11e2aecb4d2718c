"""What trainers of `bench transport` share: they take batches for ever and say what they have used when they are asked.

Protocol: a JSON object with an address, empty, on standard output when the first batch is there. Each line on standard
input is answered with one that says what was used since the beginning; times are in nanoseconds. Ready, NextMedian and
NextP99 are about the batches since the last question that were ready when they were asked for. The end of standard
input ends the program.
"""

from __future__ import annotations

import json
import os
import resource
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

PAGE = 4096  # bytes; one of each page is read

# The protocol has standard output for itself; what libraries print goes to standard error.
_out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def arguments() -> dict[str, Any]:
    """What the runner wants: a JSON object in the first argument."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    return settings


def run(batches: Iterator[Any], waits: Callable[[], int], settings: dict[str, Any]) -> None:
    """Take batches until standard input ends.

    Args:
        batches: numpy arrays or tensors [rows, …]; endless, or an epoch that is taken when all of it is ready.
        waits: how many batches were not ready when they were asked for, so far.
        settings: pause_s between batches, and whether to touch each page of a batch; burst is set for such an epoch.
    """
    next(batches)
    _say(address="")
    burst = "burst" in settings
    if burst:
        os.read(0, 1 << 10)
    pause, touch = settings["pause_s"], settings["touch"]
    began, waited, cpu = time.perf_counter_ns(), waits(), _cpu()
    count, size, times = 0, 0, []
    while True:
        if pause:
            time.sleep(pause)
        asked = time.perf_counter_ns()
        batch = next(batches, None)
        took = time.perf_counter_ns() - asked
        if batch is None:
            break
        now = waits()
        if now == waited:
            times.append(took)
        waited = now
        count += 1
        size += batch.nbytes + len(batch) * 8
        if touch:
            batch.reshape(-1)[::PAGE].sum()
        del batch
        if not burst and select.select([0], [], [], 0)[0]:
            if not os.read(0, 1 << 10):
                return
            _report(size, count, began, cpu, times)
            times = []
    _report(size, count, began, cpu, times)
    os.read(0, 1 << 10)


def _report(size: int, count: int, began: int, cpu: int, times: list[int]) -> None:
    times.sort()
    _say(
        Bytes=size,
        Batches=count,
        CPU=_cpu() - cpu,
        Time=time.perf_counter_ns() - began,
        Ready=len(times),
        NextMedian=times[len(times) // 2] if times else 0,
        NextP99=times[len(times) * 99 // 100] if times else 0,
    )


def _cpu() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def _say(**facts: Any) -> None:
    print(json.dumps(facts), file=_out, flush=True)
