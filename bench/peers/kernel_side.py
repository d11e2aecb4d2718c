"""The peer of `bench kernels`: Pillow with torchvision, and torchvision.io with transforms of tensors, on one core.

Answers each line of JSON on standard input with one on standard output:
    {"do": "prepare", "id": …, "files": […], "ready": …, "steps": […], "draws": …}   reads files; ready: decodes them too
    {"do": "pixels", "id": …, "file": …}                                             writes what all passes make, on PIL images
    {"do": "time", "id": …, "variant": …}                                            {"cpu": seconds, "images": …} of all passes
draws has, for each pass and file, what each step drew, so that both sides do the same and drawing costs the peer nothing.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CORE = int(sys.argv[1])
os.sched_setaffinity(0, {CORE})  # before the imports, whose threads inherit it

import torch  # noqa: E402
from PIL import Image  # noqa: E402
from torchvision.io import ImageReadMode, decode_jpeg  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402

JITTER = ("brightness", "contrast", "saturation", "hue")


def step(image: Any, name: str, params: dict[str, Any], draw: dict[str, Any]) -> Any:
    """One operator of torchvision on a PIL image or a tensor."""
    if name == "random_resized_crop":
        size = [params["size"]] * 2
        return F.resized_crop(image, draw["i"], draw["j"], draw["h"], draw["w"], size, antialias=True)
    if name == "random_horizontal_flip":
        return F.horizontal_flip(image) if draw["applied"] else image
    if name == "gaussian_blur":
        return F.gaussian_blur(image, params["kernel_size"], draw["sigma"])
    if name != "color_jitter":
        raise ValueError(f"no operator {name}")
    for i in draw["order"]:
        if params[JITTER[i]]:
            image = getattr(F, "adjust_" + JITTER[i])(image, draw[JITTER[i]])
    return image


class Work:
    """Files and what to do with them."""

    def __init__(self, order: dict[str, Any]) -> None:
        """Read all files; with ready set, decode them."""
        self.steps = [(s["name"], s["params"]) for s in order["steps"]]
        self.draws = order["draws"]
        self.ready = order["ready"]
        self.data = [Path(name).read_bytes() for name in order["files"]]
        if self.ready:
            self.images = [Image.open(io.BytesIO(data)).convert("RGB") for data in self.data]
            self.tensors = [F.pil_to_tensor(image) for image in self.images]
        else:
            self.tensors = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in self.data]

    def run(self, variant: str) -> Iterator[torch.Tensor]:
        """Every image of every pass, as a tensor of uint8 C×H×W."""
        for draws in self.draws:
            for i, drawn in enumerate(draws):
                image = self.tensor(i) if variant == "torchvision.io" else self.pil(i)
                if variant != "nothing":
                    for (name, params), draw in zip(self.steps, drawn, strict=True):
                        image = step(image, name, params, draw)
                yield image if isinstance(image, torch.Tensor) else F.pil_to_tensor(image)

    def pil(self, i: int) -> Image.Image:
        """A file as torchvision's datasets load it by default."""
        return self.images[i] if self.ready else Image.open(io.BytesIO(self.data[i])).convert("RGB")

    def tensor(self, i: int) -> torch.Tensor:
        """A file as torchvision.io decodes it."""
        return self.tensors[i] if self.ready else decode_jpeg(self.tensors[i], mode=ImageReadMode.RGB)


def main() -> None:
    """Answer until the input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    torch.set_num_threads(1)
    work: dict[str, Work] = {}
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        if order["do"] == "prepare":
            work[order["id"]] = made = Work(order)
            for variant in ("pillow+torchvision", "torchvision.io"):
                next(made.run(variant))
        elif order["do"] == "pixels":
            with Path(order["file"]).open("wb") as file:
                for image in work[order["id"]].run("pillow+torchvision"):
                    file.write(image.numpy().tobytes())
        else:
            images, began = 0, time.process_time()
            for _ in work[order["id"]].run(order["variant"]):
                images += 1
            answer = {"cpu": time.process_time() - began, "images": images}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
