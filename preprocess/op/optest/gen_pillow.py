"""Pillow as the oracle of the image operators.

    python gen_pillow.py generate testdata      writes small images and the hashes of what Pillow makes of them
    python gen_pillow.py compare dump.txt       checks a dump against Pillow; run in the folder of the Go test, after
                                                MILLRACE_OPTEST_DUMP=dump.txt go test -run Dump ./preprocess/op/optest

Needs pillow==13.* and numpy. Every case names an image, a mode, whether EXIF orientation is applied, and the steps
[name, numbers...] taken on it; its hash is the first 12 hex digits of SHA-256 over height x width x channels bytes. Images whose name begins with "extra" were made by
libjpeg-turbo's cjpeg, whose options Pillow lacks, and are only read here.
"""

import hashlib
import pathlib
import sys

import numpy as np
import PIL
from PIL import Image, ImageOps

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def run(path, case):
    """The pixels of one case, as Pillow makes them."""
    image = Image.open(path)
    image.load()
    if case["exif"]:
        image = ImageOps.exif_transpose(image)
    image = image.convert(case["mode"])
    for name, *args in case["steps"]:
        if name == "crop":
            x, y, w, h = args
            image = image.crop((x, y, x + w, y + h))
        elif name == "resize":
            w, h, kind = args
            image = image.resize((w, h), FILTERS[kind])
        elif name == "hflip":
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        elif name == "resize_short":
            size, max_size, kind = args
            image = image.resize(short_side(image.size, size, max_size), FILTERS[kind])
        elif name == "center_crop":
            image = center_crop(image, *args)
        else:
            raise ValueError(name)
    pixels = np.asarray(image)
    return pixels.reshape(image.height, image.width, -1)


def short_side(size, want, max_size):
    """torchvision's _compute_resized_image_output_size."""
    w, h = size
    short, long = min(w, h), max(w, h)
    new_short, new_long = want, int(want * long / short)
    if max_size and new_long > max_size:
        new_short, new_long = int(max_size * new_short / new_long), max_size
    return (new_short, new_long) if w <= h else (new_long, new_short)


def center_crop(image, ch, cw):
    """torchvision's center_crop on PIL images."""
    w, h = image.size
    if cw > w or ch > h:
        left, top = max(cw - w, 0) // 2, max(ch - h, 0) // 2
        right, bottom = (max(cw - w, 0) + 1) // 2, (max(ch - h, 0) + 1) // 2
        image = ImageOps.expand(image, (left, top, right, bottom), fill=0)
        w, h = image.size
        if (w, h) == (cw, ch):
            return image
    y, x = int(round((h - ch) / 2.0)), int(round((w - cw) / 2.0))
    return image.crop((x, y, x + cw, y + ch))


def digest(pixels):
    return hashlib.sha256(pixels.tobytes()).hexdigest()[:12]


def draw(w, h, seed):
    """A picture with slopes, edges, thin lines and noise in all channels."""
    y, x = np.mgrid[0:h, 0:w]
    rng = np.random.Generator(np.random.PCG64(seed))
    picture = np.stack([(x * 255 // max(w - 1, 1)), (y * 255 // max(h - 1, 1)), ((x * 7 + y * 13) % 256)], axis=-1)
    picture[h // 3 : h // 2, w // 4 : w // 2] = (250, 20, 30)
    picture[h // 2 :, w // 2 :: 5] = (10, 40, 240)
    picture[:: max(h // 7, 1), :] = 255 - picture[:: max(h // 7, 1), :]
    picture = picture + rng.integers(-24, 25, picture.shape)
    return np.clip(picture, 0, 255).astype(np.uint8)


def exif(orientation):
    data = Image.Exif()
    data[0x0112] = orientation
    return data


def inputs():
    """Yields (file name, how to save it): every kind of file that the operators read."""
    sizes = {"a": (97, 61), "b": (64, 48), "c": (33, 131), "d": (7, 5), "e": (1, 1), "f": (160, 110)}
    sampling = {"444": "4:4:4", "422": "4:2:2", "420": "4:2:0"}
    for i, (key, (w, h)) in enumerate(sizes.items()):
        for name, s in sampling.items():
            for progressive in (False, True):
                if key == "f" and name != "420" or key == "c" and name != "420" or key == "b" and name != "420" and progressive:
                    continue
                kind = "p" if progressive else "b"
                yield f"{key}-{name}-{kind}.jpg", Image.fromarray(draw(w, h, i)), dict(quality=88, subsampling=s, progressive=progressive)
    rgb = Image.fromarray(draw(97, 61, 7))
    yield "restart.jpg", rgb, dict(quality=80, subsampling="4:2:0", restart_marker_blocks=3)
    yield "keep-rgb.jpg", rgb, dict(quality=50, keep_rgb=True)
    yield "gray.jpg", rgb.convert("L"), dict(quality=88)
    yield "gray-p.jpg", rgb.convert("L"), dict(quality=88, progressive=True)
    ink = np.concatenate([draw(97, 61, 8), draw(97, 61, 9)[:, :, :1]], axis=-1)
    yield "cmyk.jpg", Image.fromarray(ink, "CMYK"), dict(quality=55)
    for o in range(1, 9):
        yield f"exif{o}.jpg", Image.fromarray(draw(57, 35, 10 + o)), dict(quality=88, subsampling="4:2:0", exif=exif(o))
    yield "exif6.png", Image.fromarray(draw(19, 11, 30)), dict(exif=exif(6))
    yield "exif9.jpg", Image.fromarray(draw(19, 11, 31)), dict(exif=exif(9))
    alpha = np.concatenate([draw(41, 23, 20), draw(41, 23, 21)[:, :, :1]], axis=-1)
    yield "rgb.png", Image.fromarray(alpha[:, :, :3]), {}
    yield "rgba.png", Image.fromarray(alpha), {}
    yield "l.png", Image.fromarray(alpha[:, :, 0]), {}
    yield "la.png", Image.fromarray(np.ascontiguousarray(alpha[:, :, 2:])), {}
    yield "bit.png", Image.fromarray(alpha[:, :, 0]).convert("1"), {}
    gray16 = alpha[:, :, 0].astype(np.uint16) * (1 + (alpha[:, :, 1] > 128) * 255)
    yield "l16.png", Image.fromarray(gray16.astype(np.uint16)), {}
    palette = Image.fromarray(alpha[:, :, :3]).quantize(200)
    yield "p.png", palette, {}
    yield "p4.png", Image.fromarray(alpha[:, :, :3]).quantize(13), dict(bits=4)
    yield "p-trns.png", palette, dict(transparency=3)
    yield "rgb-trns.png", Image.fromarray(alpha[:, :, :3]), dict(transparency=tuple(int(v) for v in alpha[0, 0, :3]))
    yield "l-trns.png", Image.fromarray(alpha[:, :, 0]), dict(transparency=int(alpha[0, 0, 0]))


def raw_png(path, depth, colour, samples, interlace=0, extra=b""):
    """Writes a PNG of a kind that Pillow can't: big-endian samples, rows as they are."""
    import struct
    import zlib

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    h, w = samples.shape[:2]

    def rows(part):
        flat = part.reshape(part.shape[0], -1)
        if depth == 16:
            packed = flat.astype(">u2").tobytes()
            size = flat.shape[1] * 2
        elif depth == 8:
            packed, size = flat.astype(np.uint8).tobytes(), flat.shape[1]
        else:
            bits = ((flat[:, :, None] >> np.arange(depth - 1, -1, -1)) & 1).reshape(flat.shape[0], -1)
            packed = np.packbits(bits.astype(np.uint8), axis=1)
            size, packed = packed.shape[1], packed.tobytes()
        return b"".join(b"\0" + packed[i * size : (i + 1) * size] for i in range(part.shape[0]))

    if interlace:
        passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
        parts = [samples[y::dy, x::dx] for y, x, dy, dx in passes]
        data = b"".join(rows(p) for p in parts if p.size)
    else:
        data = rows(samples)
    head = struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, interlace)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b""))


def raw_pngs(folder):
    rng = np.random.Generator(np.random.PCG64(99))
    deep = rng.integers(0, 65536, (13, 17, 4))
    deep[:, ::2, 0] %= 256
    raw_png(folder / "rgb16.png", 16, 2, deep[:, :, :3])
    raw_png(folder / "rgba16.png", 16, 6, deep)
    raw_png(folder / "la16.png", 16, 4, deep[:, :, :2])
    raw_png(folder / "l2.png", 2, 0, deep[:, :, 0] % 4)
    raw_png(folder / "l4.png", 4, 0, deep[:, :, 0] % 16)
    raw_png(folder / "rgb-adam7.png", 8, 2, draw(17, 13, 98).astype(int), interlace=1)
    raw_png(folder / "l16-adam7.png", 16, 0, deep[:, :, 0], interlace=1)
    return ["rgb16.png", "rgba16.png", "la16.png", "l2.png", "l4.png", "rgb-adam7.png", "l16-adam7.png"]


def windows(w, h):
    """Crops that touch every edge and some that touch none."""
    found = [(0, 0, w, h)]
    if w >= 5 and h >= 5:
        a, b = max(w // 3, 1), max(h // 3, 1)
        found += [(0, 0, a, b), (w - a, 0, a, b), (0, h - b, a, b), (w - a, h - b, a, b)]
        found += [(a, b, w - a - 1, h - b - 1), (w // 2, 1, 1, h - 2), (1, h // 2, w - 2, 1), (w // 2 - 1, h // 2 - 1, 3, 2)]
    return found


def cases(name, w, h):
    def case(*steps, mode="RGB", exif=False):
        return {"input": name, "mode": mode, "exif": exif, "steps": [list(s) for s in steps]}

    yield case()
    yield case(mode="L")
    if name.startswith("exif"):
        yield case(exif=True)
        uw, uh = (h, w) if name[4] in "5678" else (w, h)
        for x, y, cw, ch in windows(uw, uh):
            yield case(("crop", x, y, cw, ch), ("resize", 16, 12, "bilinear"), exif=True)
        yield case(("crop", 1, 2, uw - 3, uh - 4), ("resize", 40, 9, "bicubic"), ("hflip",), exif=True, mode="L")
    for x, y, cw, ch in windows(w, h)[1 :: 2 if "-p" in name or ".png" in name else 1]:
        yield case(("crop", x, y, cw, ch))
    if name == "rgb.png" or not name.endswith(".png") and name[0] in "abcdefrgk" and not name.startswith("exif"):
        targets = [(16, 16), (31, 9), (cw_up(w), 20), (w, 11), (13, h)]
        for i, (x, y, cw, ch) in enumerate(windows(w, h)):
            for j, kind in enumerate(FILTERS):
                if name != "rgb.png" and name[2:] not in ("420-b.jpg", "444-b.jpg") and (i + j) % 7:
                    continue
                tw, th = targets[(i + j) % len(targets)]
                steps = [("crop", x, y, cw, ch), ("resize", tw, th, kind)]
                if (i + j) % 3 == 0:
                    steps.append(("hflip",))
                yield case(*steps, mode="L" if (i + j) % 7 == 0 else "RGB")
        yield case(("resize_short", 24, 0, "bilinear"), ("center_crop", 24, 24))
        yield case(("resize_short", 24, 30, "bicubic"))
        yield case(("center_crop", h + 5, max(w - 3, 1)))
        yield case(("center_crop", max(h - 3, 1), w + 2))
        yield case(("hflip",), ("resize", 15, 17, "bilinear"), ("crop", 2, 3, 9, 8), ("resize", 12, 5, "lanczos"))
    else:
        yield case(("resize", 12, 9, "bilinear"))
        yield case(("resize", 12, 40, "bicubic"), mode="L")


def cw_up(w):
    return w * 2 + 3


def generate(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name, image, options in inputs():
        image.save(folder / name, **options)
        names.append(name)
    names += raw_pngs(folder)
    # Blocks of a progressive image that ends early are smoothed, which versions of libjpeg-turbo do differently.
    names += [p.name for p in sorted(folder.glob("extra-*")) if p.name != "extra-unfinished.jpg"]
    with open(folder / "golden.txt", "w") as out:
        for name in names:
            w, h = Image.open(folder / name).size
            for case in cases(name, w, h):
                pixels = run(folder / name, case)
                out.write(spell(case, pixels) + "\n")


def spell(case, pixels):
    """One line: image mode exif step:numbers... = shape hash."""
    steps = [s[0] + ":" + ",".join(str(v) for v in s[1:]) for s in case["steps"]]
    shape = "x".join(str(n) for n in pixels.shape)
    return " ".join([case["input"], case["mode"], str(int(case["exif"])), *steps, "=", shape, digest(pixels)])


def parse(line):
    """The case, shape and hash of such a line."""
    left, right = line.split(" = ")
    name, mode, turned, *steps = left.split(" ")
    case = {"input": name, "mode": mode, "exif": turned == "1", "steps": []}
    for step in steps:
        kind, _, numbers = step.partition(":")
        case["steps"].append([kind, *(int(n) if n.isdigit() else n for n in numbers.split(",") if n)])
    shape, digits = right.split()
    return case, [int(n) for n in shape.split("x")], digits


def compare(dump):
    """Exits with 1 unless Pillow gives the bytes of every line of the dump."""
    total = wrong = 0
    with open(dump) as lines:
        for line in lines:
            case, shape, digits = parse(line)
            pixels = run(case["input"], case)
            total += 1
            if list(pixels.shape) != shape or digest(pixels) != digits:
                wrong += 1
                print("differs:", line.strip(), file=sys.stderr)
    print(f"{total - wrong} of {total} cases equal Pillow {PIL.__version__}")
    return 1 if wrong or not total else 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("generate", "compare"):
        sys.exit(__doc__)
    if sys.argv[1] == "generate":
        generate(sys.argv[2])
    else:
        sys.exit(compare(sys.argv[2]))
