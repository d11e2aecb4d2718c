"""A trainer on the host of a sidecar, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import millrace as mr
import trainer


class Images(Iterator[Any]):
    """The images of every batch of an epoch."""

    def __init__(self, loader: mr.DataLoader) -> None:
        self.batches = iter(loader)

    def __next__(self) -> Any:
        """The images of the next batch."""
        return next(self.batches)["image"]


def main() -> None:
    """Take batches until the runner has seen enough."""
    settings = trainer.arguments()
    with mr.DataLoader(
        "virtual.tar",
        settings["rows"],
        endpoint=settings["endpoint"],
        job="bench",
        tail="drop",
        prefetch_batches=settings.get("burst", 2),
        transport="ring",
    ) as loader:
        trainer.run(Images(loader), lambda: loader.stats().waits, settings)


if __name__ == "__main__":
    main()
