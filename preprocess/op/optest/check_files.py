"""Pillow on the files of a folder, its own test images for one, as the oracle of decode_image.

    MILLRACE_OPTEST_FILES=FOLDER MILLRACE_OPTEST_RESULTS=/tmp/results go test -run TestFiles ./preprocess/op/optest
    python preprocess/op/optest/check_files.py FOLDER /tmp/results

Every file that Pillow reads, and that is of a format that decode_image reads, must have given the same pixels; every
file that Pillow refuses an error.
"""

import collections
import hashlib
import json
import pathlib
import sys
import warnings

import numpy as np
from PIL import Image, ImageOps

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


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
    array = np.asarray(image.convert({"rgb": "RGB", "l": "L"}[params["mode"]]))
    return array.reshape(array.shape[0], array.shape[1], -1)


def about(path):
    try:
        image = Image.open(path)
    except Exception:
        return "unreadable"
    return f"{image.format} {image.mode} {image.size[0]}x{image.size[1]}"


def main(folder, results):
    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = None
    folder = pathlib.Path(folder)
    count = collections.Counter()
    seen = {}
    for line in open(results):
        ours = json.loads(line)
        path = folder / ours["input"]
        try:
            p = pixels(path, ours["params"])
            theirs = (list(p.shape), hashlib.sha256(p.tobytes()).hexdigest()[:12])
        except Exception as e:
            theirs = f"{type(e).__name__}: {e}"[:100]
        if isinstance(theirs, str):
            kind = "both refuse" if "error" in ours else "we read what Pillow refuses"
        elif "error" in ours:
            kind = "we refuse"
        elif ours["hash"] == theirs[1] and ours["shape"] == theirs[0]:
            kind = "equal"
        elif ours["shape"] != theirs[0]:
            kind = "shape"
        else:
            kind = "differs"
        count[kind] += 1
        if kind not in ("equal", "both refuse"):
            print(kind, ours["input"], ours["params"], about(path), ours.get("error", "")[-120:], theirs if isinstance(theirs, str) else "")
    print(dict(count))


main(*sys.argv[1:])
