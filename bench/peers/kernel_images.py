"""Makes the files of `bench kernels` from photographs, and prints their names, one JSON object: {"jpeg_44k": […], …}.

The argument is {"out": folder, "photos": folder or "", "images": n}. Each image is a part of a photograph, reduced with
Lanczos to its size and stored as 4:2:0 JPEG at the quality that comes nearest to its number of bytes. Without
photographs, pictures are drawn. The same photographs, number and version of Pillow make the same bytes.
"""

from __future__ import annotations

import io
import json
import random
import re
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SMALL, LARGE, READY = (500, 375), (1600, 1200), (224, 224)
BYTES = {"jpeg_44k": 44_000, "jpeg_103k": 103_000, "jpeg_1600": 344_000}
LARGE_SHARE = 4  # one large image for so many small ones


def photographs(folder: str) -> list[Path]:
    """Those that are large enough; of pictures stored in many sizes, the largest."""
    found: dict[Path, tuple[int, Path]] = {}
    for path in sorted(Path(folder).rglob("*.jpg")) if folder else []:
        with Image.open(path) as image:
            w, h = image.size
        if w < LARGE[0] or h < LARGE[1]:
            continue
        name = path.parent if re.fullmatch(r"\d+x\d+", path.stem) else path
        found[name] = max(found.get(name, (0, path)), (w * h, path))
    return [path for _, path in found.values()]


def draw(i: int) -> Image.Image:
    """A picture with edges, gradients and noise."""
    rng = np.random.default_rng(i)
    y, x = np.mgrid[0 : LARGE[1], 0 : LARGE[0]].astype(np.float32)
    planes = []
    for _ in range(3):
        a, b, c = rng.uniform(0.002, 0.02, 3)
        wave = 60 * np.sin(a * x) + 40 * np.sin(b * y + 3) + 30 * np.sign(np.sin(c * (x + y)))
        planes.append(wave + 128 + rng.normal(0, 6, wave.shape))
    return Image.fromarray(np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8))


def part(photo: Image.Image, size: tuple[int, int], rng: random.Random) -> Image.Image:
    """A random part of a photograph, of the shape of size, reduced to it."""
    scale = min(photo.width / size[0], photo.height / size[1]) * rng.uniform(0.7, 1.0)
    scale = max(scale, 1.0)
    w, h = int(size[0] * scale), int(size[1] * scale)
    x, y = rng.randint(0, photo.width - w), rng.randint(0, photo.height - h)
    return photo.resize(size, Image.Resampling.LANCZOS, box=(x, y, x + w, y + h))


def encode(image: Image.Image, quality: int) -> bytes:
    """The image as a baseline 4:2:0 JPEG."""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, subsampling="4:2:0")
    return out.getvalue()


def fit(image: Image.Image, target: int) -> int:
    """The quality whose file comes nearest to target bytes."""
    low, high = 20, 100
    while low < high:
        middle = (low + high) // 2
        if len(encode(image, middle)) < target:
            low = middle + 1
        else:
            high = middle
    near = [q for q in (low - 1, low) if 1 <= q <= 100]
    return min(near, key=lambda q: abs(len(encode(image, q)) - target))


def main() -> None:
    """Make all files."""
    settings = json.loads(sys.argv[1])
    out = Path(settings["out"])
    photos = photographs(settings["photos"])
    files: dict[str, list[str]] = {}

    def keep(kind: str, i: int, data: bytes, suffix: str = "jpg") -> None:
        path = out / f"{kind}-{i:03}.{suffix}"
        path.write_bytes(data)
        files.setdefault(kind, []).append(str(path))

    for i in range(settings["images"]):
        rng = random.Random(f"image {i}")
        photo = Image.open(photos[i % len(photos)]).convert("RGB") if photos else draw(i)
        small = part(photo, SMALL, rng)
        keep("jpeg_44k", i, encode(small, fit(small, BYTES["jpeg_44k"])))
        keep("jpeg_103k", i, encode(small, fit(small, BYTES["jpeg_103k"])))
        if i % LARGE_SHARE == 0 or len(files["jpeg_1600"]) < 2:
            large = part(photo, LARGE, rng)
            keep("jpeg_1600", i, encode(large, fit(large, BYTES["jpeg_1600"])))
        ready = io.BytesIO()
        part(photo, READY, rng).save(ready, "PNG")
        keep("ready", i, ready.getvalue(), "png")
    print(json.dumps(files))


if __name__ == "__main__":
    main()
