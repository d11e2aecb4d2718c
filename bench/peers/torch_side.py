"""torch's DataLoader with torchvision over the same bytes.

Images are read out of the same tar shards by offset, from files that each worker opens once: cheaper for the peer
than a file per image. The files are repeated within an epoch, so that the ends of epochs cost it nothing either.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import consume
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

LONG_EPOCH = 100_000  # images


class Shards(Dataset):
    """Images by their place in shards, decoded and augmented."""

    def __init__(self, index: Path, size: int, decode: str) -> None:
        """Read the index that the runner wrote: files and, for each image, [file, offset, length, label]."""
        listed = json.loads(index.read_text())
        self.files: list[str] = listed["files"]
        # An array, so that workers share it: reference counts of a list would copy its pages.
        self.samples = np.asarray(listed["samples"], np.int64)
        self.repeats = -(-LONG_EPOCH // len(self.samples))
        self.decode = self.pil if decode == "pil" else self.tensor
        crop = v2.RandomResizedCrop(size, antialias=True)
        flip = v2.RandomHorizontalFlip(p=0.5)
        self.transform = v2.Compose([crop, flip, v2.PILToTensor()] if decode == "pil" else [crop, flip])
        self.opened: dict[int, int] = {}

    def __len__(self) -> int:
        """Images of an epoch."""
        return len(self.samples) * self.repeats

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        """One image, uint8 [3, size, size], and its label."""
        file, offset, length, label = self.samples[i % len(self.samples)].tolist()
        descriptor = self.opened.get(file)
        if descriptor is None:
            descriptor = self.opened[file] = os.open(self.files[file], os.O_RDONLY)
        return self.transform(self.decode(os.pread(descriptor, length, offset))), label

    @staticmethod
    def pil(data: bytes) -> Any:
        """Decode as torchvision's datasets do by default."""
        from PIL import Image

        return Image.open(io.BytesIO(data)).convert("RGB")

    @staticmethod
    def tensor(data: bytes) -> torch.Tensor:
        """Decode with torchvision.io."""
        from torchvision.io import ImageReadMode, decode_jpeg

        return decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)


def batches(loader: DataLoader) -> Iterator[Any]:
    """The images of every batch of every epoch; numpy's view costs nothing."""
    while True:
        for images, _ in loader:
            yield images.numpy()


def main() -> None:
    """Measure one window."""
    settings = consume.arguments()
    loader = DataLoader(
        Shards(Path(settings["index"]), settings["size"], settings["decode"]),
        settings["batch"],
        shuffle=True,
        num_workers=settings["workers"],
        drop_last=True,
        persistent_workers=True,
        prefetch_factor=settings["prefetch_factor"],
    )
    consume.run(batches(loader), settings)


if __name__ == "__main__":
    main()
