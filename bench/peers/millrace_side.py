"""Millrace as a user meets it: a recipe, a loader, no endpoint. Imports neither torch nor anything that does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import consume
import millrace as mr


def batches(loader: mr.DataLoader) -> Iterator[Any]:
    """The images of every batch of every epoch."""
    while True:
        for batch in loader:
            yield batch["image"]


def main() -> None:
    """Measure one window."""
    settings = consume.arguments()
    size = settings["size"]
    recipe = (
        mr.Recipe(settings["source"])
        .decode_image("image")
        .random_resized_crop("image", size=size)
        .random_horizontal_flip("image", p=0.5)
    )
    with mr.DataLoader(recipe, settings["batch"], shuffle=True, seed=0, tail="drop", job="bench-e2e") as loader:
        consume.run(batches(loader), settings)


if __name__ == "__main__":
    main()
