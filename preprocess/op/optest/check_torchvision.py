"""torchvision on PIL images as the oracle of the operators on pixels.

    MILLRACE_OPTEST_OPERATORS=/tmp/dump go test -run OperatorDump ./preprocess/op/optest
    cd preprocess/op/optest && python check_torchvision.py /tmp/dump [golden.jsonl]

Each result in the dump says what was drawn; torchvision's functional operators are given the same values and must
give the same bytes. The largest difference of each operator is printed, and more than is allowed is an error. With a
second file, the first results of every recipe are written there for go test. Needs torch, torchvision and pillow==13.*.
"""

import collections
import json
import pathlib
import sys

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image, ImageOps
from torchvision.transforms import autoaugment
from torchvision.transforms import functional as F
from torchvision.transforms.functional import InterpolationMode

MODES = {m.value: m for m in InterpolationMode}

IMAGE_MODES = {"rgb": "RGB", "l": "L", "rgba": "RGBA", "i16": "I;16"}

# The largest difference allowed, in levels; 0 for all others.
ALLOWED = {"gaussian_blur": 1}


def mode(step, default="nearest"):
    return MODES[step.get("interpolation", default)]


def fill(step):
    value = step.get("fill", 0)
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def space(step, size):
    """The magnitudes that torchvision's own class would choose from."""
    name = step["name"]
    if name == "rand_augment":
        t = autoaugment.RandAugment(num_magnitude_bins=step.get("num_magnitude_bins", 31))
        return t._augmentation_space(t.num_magnitude_bins, size), step.get("magnitude", 9)
    if name == "trivial_augment_wide":
        t = autoaugment.TrivialAugmentWide()
        return t._augmentation_space(t.num_magnitude_bins), None
    if name == "auto_augment":
        t = autoaugment.AutoAugment()
        return t._augmentation_space(10, size), None
    t = autoaugment.AugMix(severity=step.get("severity", 3), all_ops=step.get("all_ops", True))
    return t._augmentation_space(10, size), None


def augment(image, step, draw, tables):
    magnitudes, at = tables
    values, signed = magnitudes[draw["op"]]
    if values.ndim > 0:
        allowed = [float(v) for v in (values if at is None else values[at : at + 1])]
        m = draw["magnitude"]
        assert m in allowed or signed and -m in allowed, (draw, allowed)
    if draw["op"] == "Posterize" and int(draw["magnitude"]) == 0:
        return Image.new(image.mode, image.size)  # What is left without any bits.
    return autoaugment._apply_op(image, draw["op"], draw["magnitude"], interpolation=mode(step), fill=step.get("fill"))


def policy_of(step, draw):
    policies = autoaugment.AutoAugment()._get_policies(autoaugment.AutoAugmentPolicy(step.get("policy", "imagenet")))
    names = [name for name, _, _ in policies[draw["policy"]]]
    assert draw["op"] in names, (draw, names)


def aug_mix(image, step, draws):
    step = dict(step, interpolation=step.get("interpolation", "bilinear"))
    tables = space(step, (image.height, image.width))
    original = torch.from_numpy(np.array(image)).float()
    mix = torch.tensor(draws.popleft()["keep"], dtype=torch.float32) * original
    for _ in range(step.get("mixture_width", 3)):
        weight = torch.tensor(draws.popleft()["weight"], dtype=torch.float32)
        chain = image
        while draws and "op" in draws[0]:
            chain = augment(chain, step, draws.popleft(), tables)
        mix.add_(weight * torch.from_numpy(np.array(chain)).float())
    return Image.fromarray(mix.to(torch.uint8).numpy())


def erase(image, step, draw):
    if not draw["applied"]:
        return image
    is_image = isinstance(image, Image.Image)
    tensor = F.pil_to_tensor(image) if is_image else image
    value = step.get("value", 0)
    v = torch.tensor([float(x) for x in (value if isinstance(value, list) else [value])])[:, None, None]
    tensor = F.erase(tensor, draw["i"], draw["j"], draw["h"], draw["w"], v)
    return F.to_pil_image(tensor) if is_image else tensor


def apply(image, step, draws):
    """One step of a recipe; images are PIL's until a step makes a tensor, or a tuple, of them."""
    name = step["name"]
    one = lambda: draws.popleft()  # noqa: E731
    if name == "pad":
        value = fill(step)
        return F.pad(image, step["padding"], tuple(value) if isinstance(value, list) else value, step.get("padding_mode", "constant"))
    if name == "resize":
        return F.resize(image, step["size"], mode(step, "bilinear"))
    if name == "random_resized_crop":
        d = one()
        return F.resized_crop(image, d["i"], d["j"], d["h"], d["w"], step["size"])
    if name == "random_crop":
        d = one()
        return F.crop(F.pad(image, step.get("padding", 0)), d["i"], d["j"], d["h"], d["w"])
    if name == "random_vertical_flip":
        return F.vflip(image) if one()["applied"] else image
    if name == "random_horizontal_flip":
        return F.hflip(image) if one()["applied"] else image
    if name == "center_crop":
        return F.center_crop(image, step["size"])
    if name == "random_grayscale":
        return F.rgb_to_grayscale(image, len(image.getbands())) if one()["applied"] else image
    if name == "grayscale":
        return F.rgb_to_grayscale(image, step.get("num_output_channels", 1))
    if name == "color_jitter":
        draw = one()
        for i in draw["order"]:
            which = ["brightness", "contrast", "saturation", "hue"][i]
            if which in step:
                image = getattr(F, "adjust_" + which)(image, draw[which])
        return image
    if name == "gaussian_blur":
        sigma = one()["sigma"]
        return F.gaussian_blur(image, step["kernel_size"], [sigma, sigma])
    if name == "random_rotation":
        return F.rotate(image, one()["angle"], mode(step), step.get("expand", False), step.get("center"), fill(step))
    if name == "random_affine":
        d = one()
        return F.affine(image, d["angle"], [int(t) for t in d["translate"]], d["scale"], d["shear"], mode(step), fill(step), step.get("center"))
    if name == "random_perspective":
        d = one()
        if not d["applied"]:
            return image
        w, h = image.size
        start = [[0, 0], [w - 1, 0], [w - 1, h - 1], [0, h - 1]]
        return F.perspective(image, start, d["endpoints"], mode(step, "bilinear"), fill(step))
    if name in ("rand_augment", "trivial_augment_wide", "auto_augment"):
        tables = space(step, (image.height, image.width))
        while draws:
            draw = one()
            if name == "auto_augment":
                policy_of(step, draw)
            image = augment(image, step, draw, tables)
        return image
    if name == "aug_mix":
        return aug_mix(image, step, draws)
    if name == "random_erasing":
        return erase(image, step, one())
    if name == "five_crop":
        return F.five_crop(image, step["size"])
    if name == "ten_crop":
        return F.ten_crop(image, step["size"], step.get("vertical_flip", False))
    if name == "to_tensor":
        return F.pil_to_tensor(image) if step.get("dtype") == "uint8" else F.to_tensor(image)
    if name == "convert_image_dtype":
        return F.convert_image_dtype(F.pil_to_tensor(image), getattr(torch, step["dtype"]))
    if name == "normalize":
        return F.normalize(image, step["mean"], step["std"])
    applied = one()["applied"]
    if not applied:
        return image
    if name == "random_posterize":
        return F.posterize(image, step["bits"])
    if name == "random_solarize":
        return F.solarize(image, step["threshold"])
    if name == "random_adjust_sharpness":
        return F.adjust_sharpness(image, step["sharpness_factor"])
    return {"random_equalize": F.equalize, "random_autocontrast": F.autocontrast, "random_invert": F.invert}[name](image)


def pixels(result, planar):
    if isinstance(result, tuple):
        return np.stack([pixels(r, planar)[0] for r in result])
    if isinstance(result, torch.Tensor):
        array = result.numpy()
        return (array if planar else np.moveaxis(array, 0, -1))[None]
    array = np.asarray(result)
    return array.reshape(1, array.shape[0], array.shape[1], -1)


def want(case, folder):
    image = Image.open(folder / case["input"])
    image = ImageOps.exif_transpose(image).convert(IMAGE_MODES[case["steps"][0]["mode"]])
    draws = collections.deque(d["values"] for d in case["draws"] or [])
    names = collections.deque(d["operator"] for d in case["draws"] or [])
    planar = False
    for step in case["steps"][1:]:
        mine = collections.deque()
        while names and names[0] == step["name"]:
            names.popleft()
            mine.append(draws.popleft())
        image = apply(image, step, mine)
        assert not mine, (step, mine)
        planar = planar or step["name"] == "to_tensor" and step.get("layout", "CHW") == "CHW"
    assert not draws, draws
    return pixels(image, planar)


def read(path):
    with open(path, "rb") as f:
        while line := f.readline():
            case = json.loads(line)
            dtype = np.dtype(case["dtype"])
            shape = case["shape"]
            yield line.decode(), case, np.frombuffer(f.read(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def main(dump, golden=None):
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}")
    folder = pathlib.Path("testdata")
    worst = collections.defaultdict(lambda: [0, 0, 0, 0])
    bad, kept = 0, []
    count = collections.Counter()
    for line, case, got in read(dump):
        name = "+".join(s["name"] for s in case["steps"][1:])
        try:
            reference = want(case, folder)
        except AssertionError as e:
            print("draws:", json.dumps(case), str(e)[:300])
            bad += 1
            continue
        if reference.shape != got.shape or reference.dtype != got.dtype:
            print("shape:", case, reference.shape, got.shape, reference.dtype)
            bad += 1
            continue
        difference = np.abs(reference.astype(np.float64) - got.astype(np.float64))
        row = worst[name]
        row[0] += 1
        row[1] += difference.size
        row[2] += int((difference > 0).sum())
        row[3] = max(row[3], float(difference.max()))
        if difference.max() > ALLOWED.get(name, 0):
            bad += 1
            if bad < 20:
                print("differs:", json.dumps(case), (difference > 0).sum(), difference.max())
        key = json.dumps([case["input"], case["steps"]])
        count[key] += 1
        if count[key] <= (1 if case["input"].endswith(".jpg") else 2):
            kept.append(line)
    for name, (cases, size, different, most) in sorted(worst.items()):
        print(f"{name:60} {cases:6} cases {size:10} bytes, {different} differ, at most by {most:g}")
    if golden and not bad:
        pathlib.Path(golden).write_text("".join(kept))
    print("all equal" if not bad else f"{bad} cases differ")
    return 1 if bad else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
