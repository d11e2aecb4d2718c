"""The plan of M1 on stock Ray Data: load, transform, inference, all of them sleeping; prints one JSON object.

Loads of five seconds (times the scale) give five frames of 4 MiB, one by one; a transform of half a second makes a new
frame of each, an inference of half a second a number. Loads and transforms share 8 CPU slots, inferences have 4 GPU
slots; both are logical. A smaller run before it starts Ray's worker processes, so that they are not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray
import ray.data

FRAME = 4 << 20
FRAMES_OF_A_LOAD = 5
WARM_UP = 24  # loads

Block = dict[str, Any]


def plan(sources: int, scale: float) -> ray.data.Dataset:
    """Chain the stages over that many sources, one block each."""

    def load(rows: Block) -> Iterator[Block]:
        for source in rows["id"]:
            time.sleep(5 * scale)
            for k in range(FRAMES_OF_A_LOAD):
                frame = np.empty((1, FRAME), np.uint8)
                frame.fill(k)
                yield {"id": np.array([source * FRAMES_OF_A_LOAD + k]), "frame": frame}

    def transform(rows: Block) -> Block:
        time.sleep(0.5 * scale)
        return {"id": rows["id"], "frame": rows["frame"] + np.uint8(1)}

    def infer(rows: Block) -> Block:
        time.sleep(0.5 * scale)
        return {"id": rows["id"], "first": rows["frame"][:, 0]}

    data = ray.data.range(sources, override_num_blocks=sources)
    data = data.map_batches(load, batch_size=1, num_cpus=1)
    # Slightly another shape: stages of one shape are fused to a single task, which is another plan.
    data = data.map_batches(transform, batch_size=1, num_cpus=0.99)
    # By default Ray ends a process after each task that takes a GPU, even a logical one.
    return data.map_batches(infer, batch_size=1, num_cpus=0, num_gpus=1, max_calls=0)


def drain(sources: int, scale: float) -> tuple[float, bool]:
    """Read all outputs: how long that took, and whether each of them came once and was right."""
    seen: list[int] = []
    right = True
    began = time.monotonic()
    for batch in plan(sources, scale).iter_batches(batch_size=None, prefetch_batches=0):
        seen.extend(int(i) for i in batch["id"])
        right = right and bool(np.all(batch["first"] == batch["id"] % FRAMES_OF_A_LOAD + 1))
    seconds = time.monotonic() - began
    return seconds, right and sorted(seen) == list(range(sources * FRAMES_OF_A_LOAD))


def main() -> None:
    """Run the plan and print how it went."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, required=True, help="size of the object store, in frames")
    parser.add_argument("--sources", type=int, required=True)
    parser.add_argument("--scale", type=float, required=True)
    args = parser.parse_args()

    out = os.dup(1)
    os.dup2(2, 1)  # Ray prints
    ray.init(
        num_cpus=8, num_gpus=4, object_store_memory=args.frames * FRAME, include_dashboard=False, log_to_driver=False
    )
    context = ray.data.DataContext.get_current()
    context.target_max_block_size = FRAME
    context.target_min_block_size = 1
    context.enable_progress_bars = False
    drain(min(WARM_UP, args.sources), args.scale)
    seconds, finished = drain(args.sources, args.scale)
    os.write(out, json.dumps({"seconds": seconds, "finished": finished, "ray": ray.__version__}).encode() + b"\n")
    ray.shutdown()


if __name__ == "__main__":
    main()
