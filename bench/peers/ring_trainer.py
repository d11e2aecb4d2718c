"""A trainer on the host of a sidecar, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import millrace as mr
import trainer


def batches(loader: mr.DataLoader) -> Iterator[Any]:
    """The images of every batch of every epoch."""
    while True:
        for batch in loader:
            yield batch["image"]


def main() -> None:
    """Take batches until the runner has seen enough."""
    settings = trainer.arguments()
    with mr.DataLoader(
        "virtual.tar", settings["rows"], endpoint=settings["endpoint"], job="bench", tail="drop", transport="ring"
    ) as loader:
        trainer.run(batches(loader), lambda: loader.stats().waits, settings)


if __name__ == "__main__":
    main()
