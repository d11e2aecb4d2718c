"""Pillow as the oracle of the decoders of WebP, GIF, BMP, TIFF and of transparency.

    python gen_formats.py testdata/formats      writes small images, and what Pillow makes of them to golden.jsonl

Needs pillow==13.* and numpy.
"""

import hashlib
import io
import json
import pathlib
import struct
import sys

import numpy as np
from gen_pillow import draw, exif
from PIL import Image, ImageOps


def rgba(w, h, seed):
    picture = np.concatenate([draw(w, h, seed), draw(w, h, seed + 1)[:, :, :1]], axis=-1)
    picture[: h // 2, : w // 3, 3] = 0
    picture[h // 2 :, : w // 3, 3] = 255
    return Image.fromarray(picture)


def animation(w, h, seed):
    return [Image.fromarray(draw(w, h, seed + i)) for i in range(3)]


def inputs():
    """Yields (file name, image, how to save it)."""
    for w, h in ((57, 35), (64, 48), (1, 1), (2, 3), (17, 2), (33, 16)):
        yield f"lossy-{w}x{h}.webp", Image.fromarray(draw(w, h, w)), dict(quality=70)
        yield f"alpha-{w}x{h}.webp", rgba(w, h, w), dict(quality=80)
        yield f"lossless-{w}x{h}.webp", rgba(w, h, w), dict(lossless=True)
    yield "poor.webp", Image.fromarray(draw(90, 70, 3)), dict(quality=5)
    yield "best.webp", Image.fromarray(draw(90, 70, 3)), dict(quality=100, method=6)
    yield "raw-alpha.webp", rgba(40, 30, 5), dict(quality=60, alpha_quality=30)
    yield "exact.webp", rgba(40, 30, 5), dict(lossless=True, exact=True)
    yield "palette.webp", Image.fromarray(draw(40, 30, 5)).quantize(9).convert("RGB"), dict(lossless=True)
    yield "exif6.webp", Image.fromarray(draw(31, 20, 6)), dict(exif=exif(6), quality=90)
    frames = animation(40, 30, 50)
    yield "animated.webp", frames[0], dict(save_all=True, append_images=frames[1:], quality=80)
    yield "animated-alpha.webp", rgba(40, 30, 60), dict(save_all=True, append_images=[rgba(40, 30, 70)], lossless=True)
    yield "plain.gif", Image.fromarray(draw(45, 31, 8)).quantize(150), {}
    yield "gray.gif", Image.fromarray(draw(45, 31, 8)).convert("L"), {}
    yield "small.gif", Image.fromarray(draw(45, 31, 8)).quantize(5), dict(interlace=0)
    yield "transparent.gif", Image.fromarray(draw(45, 31, 9)).quantize(40), dict(transparency=3)
    yield "animated.gif", frames[0].quantize(60), dict(save_all=True, append_images=[f.quantize(60) for f in frames[1:]])
    yield "rgb.bmp", Image.fromarray(draw(29, 18, 10)), {}
    yield "gray.bmp", Image.fromarray(draw(29, 18, 10)).convert("L"), {}
    yield "palette.bmp", Image.fromarray(draw(30, 18, 10)).quantize(100), {}
    yield "bit.bmp", Image.fromarray(draw(30, 18, 10)).convert("1"), {}
    for kind in (None, "tiff_lzw", "tiff_adobe_deflate", "packbits"):
        options = dict(compression=kind) if kind else {}
        name = (kind or "raw").replace("tiff_", "")
        yield f"rgb-{name}.tif", Image.fromarray(draw(37, 26, 11)), options
        yield f"gray-{name}.tif", Image.fromarray(draw(37, 26, 11)).convert("L"), options
        yield f"palette-{name}.tif", Image.fromarray(draw(37, 26, 11)).quantize(90), options
        yield f"alpha-{name}.tif", rgba(37, 26, 12), options
    yield "bit.tif", Image.fromarray(draw(37, 26, 11)).convert("1"), {}
    yield "gray16.tif", Image.fromarray((draw(37, 26, 14)[:, :, 0].astype(np.uint16) * 3)), {}
    yield "turned.tif", Image.fromarray(draw(37, 26, 11)), dict(tiffinfo={274: 6})


def offset_gif():
    """A GIF whose first image covers a part of the screen only."""
    small = io.BytesIO()
    Image.fromarray(draw(20, 12, 15)).quantize(16).save(small, "GIF")
    data = bytearray(small.getvalue())
    struct.pack_into("<HH", data, 6, 33, 22)
    at = 13 + (3 << (1 + (data[10] & 7)))
    while data[at] != 0x2C:
        at += 2
        while data[at]:
            at += 1 + data[at]
        at += 1
    struct.pack_into("<HH", data, at + 1, 7, 5)
    return bytes(data)


def pixels(path, mode, exif, alpha):
    image = Image.open(path)
    image.load()
    if exif == "apply":
        image = ImageOps.exif_transpose(image)
    if alpha != "drop":
        ground = Image.new("RGBA", image.size, {"white": (255, 255, 255, 255), "black": (0, 0, 0, 255), "gray": (128, 128, 128, 255)}[alpha])
        image = Image.alpha_composite(ground, image.convert("RGBA"))
    if image.mode == "RGBA" and mode == "l" and alpha != "drop":
        image = image.convert("RGB")
    array = np.asarray(image.convert("RGB").convert("L") if mode == "l" and image.mode == "CMYK" else image.convert({"rgb": "RGB", "l": "L"}[mode]))
    return array.reshape(array.shape[0], array.shape[1], -1)


def main(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name, image, options in inputs():
        image.save(folder / name, **options)
        names.append(name)
    (folder / "offset.gif").write_bytes(offset_gif())
    names.append("offset.gif")
    with open(folder / "golden.jsonl", "w") as out:
        for path in [folder / n for n in names] + sorted(folder.parent.glob("*.png")):
            for mode in ("rgb", "l"):
                for turned in ("apply", "ignore"):
                    for alpha in ("drop", "white", "black", "gray"):
                        if alpha != "drop" and (mode == "l" or turned == "ignore") or path.parent != folder and alpha == "drop":
                            continue
                        p = pixels(path, mode, turned, alpha)
                        line = {
                            "input": str(path.relative_to(folder.parent)),
                            "params": {"mode": mode, "exif": turned, "alpha": alpha},
                            "shape": list(p.shape),
                            "hash": hashlib.sha256(p.tobytes()).hexdigest()[:12],
                        }
                        out.write(json.dumps(line) + "\n")
            write_indices(out, path, folder)


def write_indices(out, path, folder):
    image = Image.open(path)
    image.load()
    if image.mode == "P":
        p = np.asarray(ImageOps.exif_transpose(image))[:, :, None]
        line = {
            "input": str(path.relative_to(folder.parent)),
            "params": {"mode": "p"},
            "shape": list(p.shape),
            "hash": hashlib.sha256(p.tobytes()).hexdigest()[:12],
        }
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
