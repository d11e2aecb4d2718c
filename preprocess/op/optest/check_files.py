"""Pillow on the files of a folder, its own test images for one, as the oracle of decode_image.

    MILLRACE_OPTEST_FILES=FOLDER MILLRACE_OPTEST_RESULTS=/tmp/results go test -run TestFiles ./preprocess/op/optest
    python preprocess/op/optest/check_files.py FOLDER /tmp/results

Every file that Pillow reads, and that is of a format that decode_image reads, must have given the same pixels; every
file that Pillow refuses an error. Those of which that is not so are listed in EXCEPTIONS, each with the reason, and a
reason that is no longer needed is an error too.
"""

import collections
import hashlib
import json
import logging
import pathlib
import sys
import warnings

import numpy as np
import PIL
from PIL import Image, ImageOps

# Files of Pillow's own tests that it and decode_image see differently.
DAMAGED = "the data are damaged; Pillow goes on with what it has, decode_image refuses to train on it"
LAB = "colours in L*a*b*, for which Pillow uses a colour management library"
OLD_JPEG = "the first form of JPEG in TIFF, long withdrawn"
EXCEPTIONS = {
    "apng/chunk_no_fctl.png": "animation chunks out of order, the image itself is whole",
    "png_decompression_dos.png": "text that unpacks to more than 1 MiB is passed over, the image itself is whole",
    "tiff_tiled_jpeg_oob_read.tif": "sizes of tiles that are too large, the image itself is whole",
    "no_palette.gif": "a GIF without any colours, which the standard does not give a meaning",
    "no_palette_with_background.gif": "a GIF whose palette is all greys: Pillow calls it grey, here it has indices",
    "no_palette_with_transparency.gif": "a GIF whose palette is all greys: Pillow calls it grey, here it has indices",
    "issue_2811.gif": "codes of more bits than the standard allows",
    "hopper_bad_exif.jpg": DAMAGED,
    "total-pages-zero.tif": DAMAGED,
    "hopper.Lab.tif": LAB,
    "lab.tif": LAB,
    "lab-green.tif": LAB,
    "lab-red.tif": LAB,
    "old-style-jpeg-compression.tif": OLD_JPEG,
    "old-style-jpeg-compression-no-samplesperpixel.tif": OLD_JPEG,
    "compression.tif": "fax compression without line ends, from before Group 3",
    "hopper_lzma.tif": "LZMA in TIFF, which only libtiff writes",
    "1_trns.png": "a transparent value of 255 among 0 and 1, which Pillow takes for 1",
}

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
FINE = ("equal", "both refuse", "excepted", "not built")


def pixels(path, params):
    image = Image.open(path, formats=FORMATS)
    image.load()
    if params["mode"] == "p":
        if image.mode != "P":
            raise ValueError("no palette")
        return np.asarray(ImageOps.exif_transpose(image))[:, :, None]
    if params.get("exif") != "ignore":
        image = ImageOps.exif_transpose(image)
    if params.get("alpha"):
        image = Image.alpha_composite(Image.new("RGBA", image.size, params["alpha"]), image.convert("RGBA"))
    if params["mode"] == "i16" and image.mode not in ("1", "L", "I", "I;16", "I;16B"):
        raise ValueError("not of one channel")
    if params["mode"] in ("rgba", "l") and image.mode == "I;16B":
        image = image.convert("I;16")
    if params["mode"] == "rgba" and image.mode in ("I", "F", "CMYK") or params["mode"] == "rgba" and image.mode == "I;16" and "transparency" not in image.info:
        image = image.convert("RGB")
    if params["mode"] == "i16" and image.mode.startswith("I;16"):
        return np.asarray(image).astype("<u2")[:, :, None]
    array = np.asarray(image.convert({"rgb": "RGB", "l": "L", "rgba": "RGBA", "i16": "I;16"}[params["mode"]]))
    if params["mode"] == "i16":
        array = array.astype("<u2")
    return array.reshape(array.shape[0], array.shape[1], -1)


def about(path):
    try:
        image = Image.open(path)
    except Exception:
        return "unreadable"
    return f"{image.format} {image.mode} {image.size[0]}x{image.size[1]}"


def main(folder, results):
    warnings.simplefilter("ignore")
    logging.disable()
    Image.MAX_IMAGE_PIXELS = 25_000_000  # Pillow refuses twice as many: the limit of decode_image.
    folder = pathlib.Path(folder)
    count = collections.Counter()
    used = set()
    for line in open(results):
        ours = json.loads(line)
        path = folder / ours["input"]
        try:
            p = pixels(path, ours["params"])
            theirs = (list(p.shape), hashlib.sha256(p.tobytes()).hexdigest()[:12])
        except Exception as e:
            theirs = f"{type(e).__name__}: {e}"[:100]
        if "-tags avif" in ours.get("error", ""):
            kind = "not built"
        elif isinstance(theirs, str):
            kind = "both refuse" if "error" in ours else "we read what Pillow refuses"
        elif "error" in ours:
            kind = "we refuse"
        elif ours["hash"] == theirs[1] and ours["shape"] == theirs[0]:
            kind = "equal"
        elif ours["shape"] != theirs[0]:
            kind = "shape"
        else:
            kind = "differs"
        if kind not in FINE and ours["input"] in EXCEPTIONS:
            used.add(ours["input"])
            kind = "excepted"
        count[kind] += 1
        if kind not in FINE:
            print(kind, ours["input"], ours["params"], about(path), ours.get("error", "")[-120:], theirs if isinstance(theirs, str) else "")
    print(f"Pillow {PIL.__version__}: {dict(count)} of {sum(count.values())} cases")
    whole = any((folder / name).exists() for name in EXCEPTIONS)
    stale = sorted(set(EXCEPTIONS) - used) if whole else []
    if stale:
        print("exceptions that are none:", stale)
    return 1 if stale or set(count) - set(FINE) or not count["equal"] else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
