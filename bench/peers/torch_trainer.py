"""torch's DataLoader, whose worker processes pass tensors that are ready."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import trainer
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Rows(Dataset[Any]):
    """Samples that are ready: torch's own collate function puts them together, in shared memory."""

    def __init__(self) -> None:
        self.image = torch.randint(0, 255, (3, 224, 224), dtype=torch.uint8)

    def __len__(self) -> int:
        """Samples of an epoch."""
        return 1 << 40

    def __getitem__(self, i: int) -> Any:
        """One sample."""
        return self.image, i


class Batches(IterableDataset[Any]):
    """Batches that are ready: each is copied once, to where the trainer will have it.

    To yield the very same tensor again would cost nothing, since torch has moved it into shared memory at its first
    pass: but the trainer would get the same memory again and again, while it still uses it.
    """

    def __init__(self, rows: int, how: str) -> None:
        self.batch = torch.randint(0, 255, (rows, 3, 224, 224), dtype=torch.uint8)
        self.label = torch.arange(rows)
        self.shared = how == "shared"

    def __iter__(self) -> Iterator[Any]:
        """Batches without end."""
        ready = self.batch
        while True:
            if self.shared:  # as torch's collate function does it
                fresh = ready.new(torch.UntypedStorage._new_shared(ready.numel())).view(ready.shape)
                fresh.copy_(ready)
            else:
                fresh = ready.clone()
            yield fresh, self.label.clone()


def batches(loader: DataLoader[Any]) -> Iterator[Any]:
    """The images of every batch."""
    while True:
        for images, _ in loader:
            yield images


def main() -> None:
    """Take batches until the runner has seen enough."""
    settings = trainer.arguments()
    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy(settings["sharing"])
    both = {"num_workers": settings["workers"], "prefetch_factor": settings["prefetch_factor"], "persistent_workers": True}
    if settings["how"] == "rows":
        loader: DataLoader[Any] = DataLoader(Rows(), settings["rows"], **both)
    else:
        loader = DataLoader(Batches(settings["rows"], settings["how"]), None, **both)
    trainer.run(batches(loader), lambda: 0, settings)


if __name__ == "__main__":
    main()
