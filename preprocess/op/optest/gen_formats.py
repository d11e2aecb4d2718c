"""Pillow as the oracle of the decoders of WebP, GIF, BMP, TIFF, AVIF and of transparency.

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
from PIL.PngImagePlugin import PngInfo


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
    ink = Image.fromarray(np.asarray(rgba(37, 26, 16)), "CMYK")
    yield "ink.tif", ink, dict(compression="tiff_lzw")
    yield "ink-jpeg.tif", ink, dict(compression="jpeg")
    yield "rgb-jpeg.tif", Image.fromarray(draw(37, 26, 17)), dict(compression="jpeg", quality=80)
    yield "gray-jpeg.tif", Image.fromarray(draw(37, 26, 17)).convert("L"), dict(compression="jpeg", quality=80)
    yield "rgb-zstd.tif", Image.fromarray(draw(37, 26, 17)), dict(compression="zstd")
    yield "int32.tif", Image.fromarray(draw(37, 26, 18)[:, :, 0].astype(np.int32) * 5 - 300), dict(compression="tiff_deflate")
    yield "float.tif", Image.fromarray(draw(37, 26, 18)[:, :, 0].astype(np.float32) * 1.7 - 60), {}
    yield "gray-alpha.tif", rgba(37, 26, 19).convert("LA"), dict(compression="packbits")
    yield "big.tif", Image.fromarray(draw(37, 26, 20)), dict(big_tiff=True)
    yield "fax.tif", Image.fromarray(draw(37, 26, 20)).convert("1"), dict(compression="group4")
    for w, h in ((57, 35), (64, 48), (1, 1), (17, 2)):
        yield f"lossy-{w}x{h}.avif", Image.fromarray(draw(w, h, w)), dict(quality=70, speed=10)
    yield "alpha.avif", rgba(57, 35, 61), dict(quality=60, speed=10)
    yield "full.avif", Image.fromarray(draw(57, 35, 62)), dict(quality=90, subsampling="4:4:4", speed=10)
    yield "half.avif", Image.fromarray(draw(57, 35, 63)), dict(quality=80, subsampling="4:2:2", range="limited", speed=10)
    yield "gray.avif", Image.fromarray(draw(57, 35, 64)), dict(subsampling="4:0:0", speed=10)
    yield "exif6.avif", Image.fromarray(draw(31, 20, 65)), dict(exif=exif(6), speed=10)
    yield "animated.avif", frames[0], dict(save_all=True, append_images=frames[1:], speed=10)
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    yield "xmp6.webp", Image.fromarray(draw(31, 20, 21)), dict(xmp=xmp, lossless=True)
    for key, text, zipped in (
        ("XML:com.adobe.xmp", xmp.decode(), True),
        ("XML:com.adobe.xmp", xmp.decode().replace('="6"/>', ">8</tiff:Orientation>"), False),
        ("Raw profile type exif", "\nexif\n      26\n" + exif(5).tobytes().hex(), True),
    ):
        info = PngInfo()
        info.add_itxt(key, text, zip=zipped) if key.startswith("XML") else info.add_text(key, text, zip=zipped)
        yield f"text-{len(text)}.png", Image.fromarray(draw(19, 11, 22)), dict(pnginfo=info)


def bmp(w, h, bits, rows, masks=(), palette=b"", compression=0, header=40):
    """A BMP of a kind that Pillow can't write."""
    colors = len(palette) // 4
    if header == 12:
        info = struct.pack("<IHHHH", 12, w, h, 1, bits)
    else:
        info = struct.pack("<IiiHHIIiiII", header, w, h, 1, bits, compression, len(rows), 0, 0, colors, 0)
        info += b"".join(struct.pack("<I", m) for m in masks) + palette
        info += bytes(max(0, 14 + header - 14 - len(info)))
    return b"BM" + struct.pack("<IHHI", 14 + len(info) + len(rows), 0, 0, 14 + len(info)) + info + rows


def raw_bitmaps():
    rng = np.random.Generator(np.random.PCG64(40))
    words = rng.integers(0, 1 << 16, (9, 14), dtype=np.uint16).astype("<u2").tobytes()
    yield "rgb15.bmp", bmp(14, 9, 16, words)
    yield "rgb16.bmp", bmp(14, 9, 16, words, (0xF800, 0x7E0, 0x1F), compression=3)
    pixels = rng.integers(0, 256, 14 * 9 * 4, dtype=np.uint8).tobytes()
    yield "rgba32.bmp", bmp(14, 9, 32, pixels, (0xFF0000, 0xFF00, 0xFF, 0xFF000000), compression=3, header=56)
    yield "topdown.bmp", bmp(14, -9, 32, pixels)
    yield "os2.bmp", bmp(13, 9, 24, pixels[: 40 * 9], header=12)
    palette = rng.integers(0, 256, 64, dtype=np.uint8).tobytes()
    runs8 = b"".join(bytes([5, y, 0, 4, 1, 2, 3, 4, 4, y + 1, 0, 0]) for y in range(6)) + bytes([3, 7, 0, 2, 2, 1, 6, 9, 0, 0, 13, 8, 0, 0, 13, 2, 0, 1])
    yield "runs8.bmp", bmp(13, 9, 8, runs8, palette=palette, compression=1)
    runs4 = b"".join(bytes([5, 16 * y + 3, 0, 5, 0x12, 0x34, 0x50, 0, 3, 0x67, 0, 0]) for y in range(9)) + bytes([0, 1])
    yield "runs4.bmp", bmp(13, 9, 4, runs4, palette=palette, compression=2)


def tiff(w, h, bits, samples, photometric, data, order="<", **more):
    """An uncompressed TIFF of a kind that Pillow can't write; more are further fields of shorts, by number."""
    values = {256: [w], 257: [h], 258: [bits] * samples, 259: [1], 262: [photometric], 273: None, 277: [samples], 278: [h], 279: [len(data)]}
    values.update({int(k[1:]): v for k, v in more.items()})
    if values.get(284) == [2]:
        values[279] = [len(data) // samples] * samples
    start = 8 + 2 + 12 * len(values) + 4
    extra, fields = b"", b""
    sizes = [2 * len(v) for v in values.values() if v is not None and len(v) > 2]
    pixels = start + sum(sizes) + 4 * samples
    values[273] = [pixels + i * values[279][0] for i in range(len(values[279]))]
    for tag in sorted(values):
        v = values[tag]
        kind, code = (4, "I") if tag == 273 else (3, "H")
        packed = struct.pack(f"{order}{len(v)}{code}", *v)
        if len(packed) > 4:
            where, extra = start + len(extra), extra + packed
            packed = struct.pack(order + "I", where)
        fields += struct.pack(order + "HHI", tag, kind, len(v)) + packed.ljust(4, b"\0")
    body = struct.pack(order + "H", len(values)) + fields + bytes(4) + extra
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return (mark + struct.pack(order + "I", 8) + body).ljust(pixels, b"\0") + data


def raw_tiffs():
    rng = np.random.Generator(np.random.PCG64(41))
    data = rng.integers(0, 256, 4000, dtype=np.uint8).tobytes()
    yield "gray12.tif", tiff(13, 7, 12, 1, 1, data[: 20 * 7])
    yield "gray2.tif", tiff(13, 7, 2, 1, 0, data[: 4 * 7])
    yield "gray4.tif", tiff(13, 7, 4, 1, 1, data[: 7 * 7], order=">")
    yield "gray16-big.tif", tiff(13, 7, 16, 1, 1, data[: 26 * 7], order=">")
    yield "signed16.tif", tiff(13, 7, 16, 1, 1, data[: 26 * 7], t339=[2])
    yield "planes.tif", tiff(13, 7, 8, 3, 2, data[: 39 * 7], t284=[2])
    yield "rgb16.tif", tiff(13, 7, 16, 3, 2, data[: 78 * 7], order=">")
    yield "multiplied.tif", tiff(13, 7, 8, 4, 2, data[: 52 * 7], t338=[1])
    yield "unused.tif", tiff(13, 7, 8, 4, 2, data[: 52 * 7], t338=[0])
    yield "reversed.tif", tiff(13, 7, 1, 1, 1, data[: 2 * 7], t266=[2])


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


CONVERT = {"rgb": "RGB", "l": "L", "rgba": "RGBA", "i16": "I;16"}


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
    if image.mode == "I;16B":
        image = Image.fromarray(np.asarray(image).astype(np.uint16))
    if mode == "i16":
        if image.mode not in ("1", "L", "I", "I;16"):
            return None
        image = Image.fromarray(np.clip(np.asarray(image), 0, 65535).astype(np.uint16)) if image.mode == "I" else image
    if mode != "i16" and image.mode in ("I", "F", "CMYK", "I;16") and "transparency" not in image.info:
        image = image.convert("RGB")
    array = np.asarray(image.convert(CONVERT[mode]))
    return array.reshape(array.shape[0], array.shape[1], -1)


def main(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name, image, options in inputs():
        image.save(folder / name, **options)
        names.append(name)
    for name, data in [("offset.gif", offset_gif()), *raw_bitmaps(), *raw_tiffs()]:
        (folder / name).write_bytes(data)
        names.append(name)
    with open(folder / "golden.jsonl", "w") as out:
        for path in [folder / n for n in names] + sorted(folder.parent.glob("*.png")):
            for mode in CONVERT:
                for turned in ("apply", "ignore"):
                    for alpha in ("drop", "white", "black", "gray"):
                        if alpha != "drop" and (mode != "rgb" or turned == "ignore") or path.parent != folder and alpha == "drop" and mode in ("rgb", "l"):
                            continue
                        p = pixels(path, mode, turned, alpha)
                        if p is None:
                            continue
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
