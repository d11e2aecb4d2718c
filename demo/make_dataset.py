#!/usr/bin/env python3
"""Make the demo's WebDataset: JPEGs near 500x375, cut from photographs that Debian packages ship.

The class of a sample is the photograph it was cut from.  Validation samples come from the middle of each
photograph, which no training sample touches, so a model that learns the scenes does better on both.
The result depends on the photographs, the options and Pillow's version alone.  DATA.md says where they are from.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageFilter

ROOT = Path(__file__).resolve().parent.parent
LONG, SHORT = 500, 375
QUALITY = 98
HELD_OUT = (0.35, 0.65)  # the part of a photograph's width that belongs to validation
RECIPE_VERSION = 1  # raise it when the bytes change, so that old sets are made anew

LOMIRI = "lomiri-wallpapers-16.04"
MATE = "mate-backgrounds"
PLASMA = "plasma-workspace-wallpapers"


@dataclass(frozen=True)
class Photo:
    """One source photograph, which is one class."""

    name: str
    package: str
    path: str  # inside the package


def _lomiri(name: str, file: str) -> Photo:
    return Photo(name, LOMIRI, f"usr/share/backgrounds/{file}.jpg")


def _mate(name: str, file: str) -> Photo:
    return Photo(name, MATE, f"usr/share/backgrounds/mate/nature/{file}.jpg")


def _plasma(name: str, folder: str) -> Photo:
    return Photo(name, PLASMA, f"usr/share/wallpapers/{folder}/contents/images/2560x1600.jpg")


PHOTOS = (
    _lomiri("autumn-tree", "Dragonfly_by_Bolly"),
    _lomiri("fig", "Picture_0B_by_freespace"),
    _lomiri("alpine-meadow", "aitzgorri_by_Aitzol_Berasategi"),
    _lomiri("stream", "life_by_Aitzol_Berasategi"),
    _lomiri("mountains", "picosdeeuropa_by_Aitzol_Berasategi"),
    _lomiri("dandelions", "seeding_by_Clements_Engelhardt"),
    _lomiri("sunset", "sunset_by_Aitzol_Berasategi"),
    _mate("leaf", "Blinds"),
    _mate("dune", "Dune"),
    _mate("red-flower", "FreshFlower"),
    _mate("rain-drops", "RainDrops"),
    _mate("planks", "Wood"),
    _plasma("pier", "BytheWater"),
    _plasma("cold-pier", "ColdRipple"),
    _plasma("cups", "ColorfulCups"),
    _plasma("boats", "EveningGlow"),
    _plasma("fallen-leaves", "FallenLeaf"),
    _plasma("facade", "Grey"),
    _plasma("moss", "OneStandsOut"),
    _plasma("forest", "Path"),
)


@dataclass(frozen=True)
class Split:
    """Some samples of one kind, written to shards of a fixed number of samples."""

    name: str
    samples: int
    per_shard: int

    def shards(self) -> int:
        """Number of shards; the last one may be short."""
        return -(-self.samples // self.per_shard)

    def labels(self) -> list[int]:
        """The class of each sample: equal shares in a seeded order."""
        labels = [i % len(PHOTOS) for i in range(self.samples)]
        random.Random(f"{self.name} order").shuffle(labels)
        return labels


class Progress:
    """A bar on a terminal; elsewhere one line for each tenth."""

    def __init__(self, what: str, total: int) -> None:
        """Start at nothing done."""
        self.what, self.total, self.done, self.tenth = what, total, 0, 0
        self.live = sys.stderr.isatty()
        self.start = time.monotonic()

    def add(self, n: int) -> None:
        """Count n more as done and show it."""
        self.done += n
        tenth = self.done * 10 // self.total
        if not self.live and tenth == self.tenth:
            return
        self.tenth = tenth
        rate = self.done / max(time.monotonic() - self.start, 1e-9)
        text = f"{self.what} {self.done:,}/{self.total:,}  {rate:,.0f}/s"
        if not self.live:
            print(text, file=sys.stderr, flush=True)
            return
        width = 30
        full = self.done * width // self.total
        end = "\n" if self.done == self.total else ""
        print(f"\r{'█' * full}{'░' * (width - full)} {text}\x1b[K", end=end, file=sys.stderr, flush=True)


def fetch_photos(cache: Path) -> dict[str, Path]:
    """Unpack the packages (never installing them) under cache; returns the folder of each."""
    folders = {package: cache / package for package in dict.fromkeys(p.package for p in PHOTOS)}
    missing = [
        package
        for package, folder in folders.items()
        if not all((folder / p.path).is_file() for p in PHOTOS if p.package == package)
    ]
    if not missing:
        return folders
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise SystemExit(
                f"error: the demo's photographs come from Debian packages and {tool} is not here; "
                "run the demo on your own data: make demo DATA=URI"
            )
    print(f"fetching photographs: {', '.join(missing)}", file=sys.stderr, flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    if not _download(missing, cache):
        _update_lists()
        if not _download(missing, cache):
            raise SystemExit(f"error: apt-get download {' '.join(missing)} failed; run it by hand to see why")
    for package in missing:
        (archive,) = cache.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, folders[package]], check=True)
        archive.unlink()
    return folders


def _download(packages: list[str], folder: Path) -> bool:
    # Root's apt would otherwise warn that its sandbox user can't write here.
    sandbox = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    for package in packages:
        for old in folder.glob(f"{package}_*.deb"):
            old.unlink()
    run = subprocess.run(["apt-get", "-qq", *sandbox, "download", *packages], cwd=folder, check=False)
    return run.returncode == 0


def _update_lists() -> None:
    # A fresh container has no package lists at all.
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    subprocess.run([*sudo, "apt-get", "-qq", "update"], check=False)


def regions(width: int, split: str) -> list[tuple[int, int]]:
    """The spans of a photograph's width, in pixels, that a split may cut from."""
    low, high = (int(part * width) for part in HELD_OUT)
    return [(low, high)] if split == "val" else [(0, low), (high, width)]


def cut(photo: Image.Image, split: str, rng: random.Random) -> bytes:
    """One JPEG from a random place, at a random scale; never enlarged by more than a few per cent."""
    width, height = (SHORT, LONG) if rng.random() < 0.2 else (LONG, SHORT)
    left, right = rng.choice(regions(photo.width, split))
    largest = min((right - left) / width, photo.height / height)
    scale = rng.uniform(0.7, 1.0) * largest
    scale = max(scale, min(1.0, largest))
    w, h = scale * width, scale * height
    x = rng.uniform(left, right - w)
    y = rng.uniform(0, photo.height - h)
    image = photo.resize((width, height), Image.Resampling.LANCZOS, box=(x, y, x + w, y + h), reducing_gap=2.0)
    image = image.filter(ImageFilter.UnsharpMask(0.7, 60, 0))  # as photo sites do after scaling
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY, subsampling="4:2:0")
    return buffer.getvalue()


def cut_some(job: tuple[Path, str, list[int], Path]) -> int:
    """All samples of one split from one photograph, each in a file of its own; returns how many."""
    path, split, indices, out = job
    with Image.open(path) as opened:
        photo = opened.convert("RGB")
    for index in indices:
        (out / f"{split}-{index:06d}.jpg").write_bytes(cut(photo, split, random.Random(f"{split} {index}")))
    return len(indices)


def jobs(split: Split, folders: dict[str, Path], out: Path) -> Iterator[tuple[Path, str, list[int], Path]]:
    """The work of a split, photograph by photograph, in pieces small enough for a live bar."""
    labels = split.labels()
    for label, photo in enumerate(PHOTOS):
        indices = [i for i, of in enumerate(labels) if of == label]
        for start in range(0, len(indices), 50):
            yield folders[photo.package] / photo.path, split.name, indices[start : start + 50], out


def write_shards(split: Split, cuts: Path, out: Path) -> list[dict[str, str | int]]:
    """Pack a split's files into tar shards; returns name, samples, bytes and SHA-256 of each."""
    labels = split.labels()
    shards: list[dict[str, str | int]] = []
    for number in range(split.shards()):
        path = out / f"{split.name}-{number:06d}.tar"
        members = range(number * split.per_shard, min((number + 1) * split.per_shard, split.samples))
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for index in members:
                image = (cuts / f"{split.name}-{index:06d}.jpg").read_bytes()
                _add(tar, f"{index:06d}.jpg", image)
                _add(tar, f"{index:06d}.cls", str(labels[index]).encode())
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shards.append({"name": path.name, "samples": len(members), "bytes": path.stat().st_size, "sha256": digest})
    return shards


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    tar.addfile(info, io.BytesIO(data))


def complete(out: Path, settings: dict[str, object]) -> bool:
    """Whether out already holds a whole set made with the same settings."""
    try:
        made = json.loads((out / "dataset.json").read_text())
        return made["settings"] == settings and all(
            (out / shard["name"]).stat().st_size == shard["bytes"] for shard in made["shards"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def clear(out: Path) -> None:
    """Remove what an earlier run left; other files in the folder are not ours."""
    shutil.rmtree(out / ".cuts", ignore_errors=True)
    for old in [*out.glob("train-??????.tar"), *out.glob("val-??????.tar"), out / "dataset.json"]:
        old.unlink(missing_ok=True)


def make(out: Path, cache: Path, splits: list[Split], settings: dict[str, object]) -> None:
    """Make the whole set; dataset.json comes last, so that a set cut short is made again."""
    folders = fetch_photos(cache)
    cuts = out / ".cuts"
    clear(out)
    cuts.mkdir(parents=True)
    progress = Progress("cutting", sum(split.samples for split in splits))
    work = [job for split in splits for job in jobs(split, folders, cuts)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for done in pool.map(cut_some, work):
            progress.add(done)
    sizes = [path.stat().st_size for path in cuts.iterdir()]
    shards = [shard for split in splits for shard in write_shards(split, cuts, out)]
    shutil.rmtree(cuts)
    made = {
        "settings": settings,
        "classes": [photo.name for photo in PHOTOS],
        "mean_jpeg_bytes": round(sum(sizes) / len(sizes)),
        "shards": shards,
    }
    (out / "dataset.json").write_text(json.dumps(made, indent=1) + "\n")


def summary(out: Path) -> str:
    """One line on a set that is there."""
    made = json.loads((out / "dataset.json").read_text())
    shards = made["shards"]
    samples = sum(shard["samples"] for shard in shards)
    return (
        f"{out}: {samples:,} JPEGs of {made['mean_jpeg_bytes'] / 1000:.0f} kB on average, "
        f"{len(made['classes'])} classes, {len(shards)} shards, {sum(s['bytes'] for s in shards) / 1e6:.0f} MB"
    )


def positive(text: str) -> int:
    """An option that counts something."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def main() -> None:
    """Parse the command line and make the set, unless it is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "demo", help="folder of the shards")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / ".cache" / "demo-photos", help="where the unpacked packages are kept"
    )
    parser.add_argument("--train", type=positive, default=2500, help="training samples")
    parser.add_argument("--val", type=positive, default=500, help="validation samples")
    parser.add_argument("--per-shard", type=positive, default=250, help="samples in a shard")
    args = parser.parse_args()

    out = args.out.resolve()
    splits = [Split("train", args.train, args.per_shard), Split("val", args.val, args.per_shard)]
    settings: dict[str, object] = {
        "version": RECIPE_VERSION,
        "train": args.train,
        "val": args.val,
        "per_shard": args.per_shard,
        "quality": QUALITY,
    }
    if complete(out, settings):
        print(f"{summary(out)} (made before)")
        return
    start = time.monotonic()
    make(out, args.cache.resolve(), splits, settings)
    print(f"{summary(out)} (made in {time.monotonic() - start:.0f} s)")


if __name__ == "__main__":
    main()
