from __future__ import annotations

import json
import pickle
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr

WORD = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
NUMBER = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(WORD | NUMBER | st.booleans(), lambda v: st.lists(v, max_size=3) | st.dictionaries(WORD, v, max_size=3))
OPERATORS = st.lists(st.tuples(WORD, st.dictionaries(WORD, VALUE, max_size=4)), max_size=4)


@st.composite
def recipes(draw):
    recipe = mr.Recipe(draw(WORD | st.lists(WORD, min_size=1, max_size=3)), draw(st.dictionaries(WORD, WORD, max_size=3)))
    for name, params in draw(OPERATORS):
        recipe = recipe.op(name, **params)
    if draw(st.booleans()):
        recipe = recipe.output(**draw(st.dictionaries(WORD, st.none() | st.dictionaries(WORD, WORD, max_size=2), max_size=3)))
    return recipe


def imagenet() -> mr.Recipe:
    return (
        mr.Recipe("train-{000000..001281}.tar", fields={"image": ["jpg", "jpeg", "png"], "label": "cls"})
        .decode_image("image")
        .random_resized_crop("image", size=224, scale=(0.08, 1.0))
        .random_horizontal_flip("image", p=0.5)
        .output(image={"layout": "CHW", "dtype": "uint8"}, label={"dtype": "int64"})
    )


def test_builder_mirrors_the_yaml_form():
    assert imagenet() == mr.Recipe.from_yaml("""
source: train-{000000..001281}.tar
fields: {image: [jpg, jpeg, png], label: cls}
operators:
  - decode_image: {field: image}
  - random_resized_crop: {field: image, size: 224, scale: [8e-2, 1.0]}
  - random_horizontal_flip: {field: image, p: 0.5}
output:
  image: {layout: CHW, dtype: uint8}
  label: {dtype: int64}
""")


@given(recipes())
def test_yaml_json_and_pickle_keep_a_recipe(recipe):
    assert mr.Recipe.from_json(recipe.to_json()) == recipe
    assert mr.Recipe.from_yaml(recipe.to_yaml()) == recipe
    assert mr.Recipe.from_yaml(recipe.to_json()) == recipe
    assert mr.Recipe.from_dict(recipe.to_dict()) == recipe
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert hash(mr.Recipe.from_json(recipe.to_json())) == hash(recipe)


def test_every_operator_writes_torchvisions_parameters():
    recipe = (
        mr.Recipe(["a.tar", "b.tar"])
        .decode_image(mode="l", exif="apply")
        .resize("image", (10, 20), max_size=30, interpolation="bicubic", antialias=True, pillow="<13")
        .center_crop("image", 8)
        .random_crop("image", 8, padding=(1, 2), pad_if_needed=True, fill=7)
        .normalize("image", (0.5, 0.5, 0.5), 0.25)
        .to_tensor("image", layout="HWC", dtype="float16")
        .label(source="meta", key="a.b", dtype="text")
        .select("image", "label")
        .rename("image", "pixels")
        .op("resize", field="pixels", size=3, resources={"cpu": 2}, barrier=True)
    )
    assert recipe.to_dict()["operators"] == [
        {"decode_image": {"exif": "apply", "field": "image", "mode": "l"}},
        {
            "resize": {
                "antialias": True,
                "field": "image",
                "interpolation": "bicubic",
                "max_size": 30,
                "pillow": "<13",
                "size": [10, 20],
            }
        },
        {"center_crop": {"field": "image", "size": 8}},
        {"random_crop": {"field": "image", "fill": 7, "pad_if_needed": True, "padding": [1, 2], "size": 8}},
        {"normalize": {"field": "image", "mean": [0.5, 0.5, 0.5], "std": 0.25}},
        {"to_tensor": {"dtype": "float16", "field": "image", "layout": "HWC"}},
        {"label": {"dtype": "text", "field": "label", "from": "meta", "key": "a.b"}},
        {"select": {"fields": ["image", "label"]}},
        {"rename": {"from": "image", "to": "pixels"}},
        {"resize": {"barrier": True, "field": "pixels", "resources": {"cpu": 2}, "size": 3}},
    ]


def test_methods_leave_the_recipe_as_it_was():
    base = mr.Recipe("a.tar")
    with_crop = base.center_crop("image", 8)
    assert base.to_dict() == {"source": "a.tar"}
    assert with_crop != base
    assert with_crop.partition(samples=4).to_dict()["partition"] == {"samples": 4}
    assert with_crop.center_crop("image", 8) == base.center_crop("image", 8).center_crop("image", 8)


def test_order_of_fields_and_columns_counts_but_not_of_parameters():
    assert mr.Recipe("a", {"x": "1", "y": "2"}) != mr.Recipe("a", {"y": "2", "x": "1"})
    assert mr.Recipe("a").output(x=None, y=None) != mr.Recipe("a").output(y=None, x=None)
    assert mr.Recipe("a").op("o", x=1, y=2) == mr.Recipe("a").op("o", y=2, x=1.0)
    assert mr.Recipe(["a"]) == mr.Recipe("a")


@pytest.mark.parametrize("text", ["yes", "1e3", "0x1f", "2026-01-01", "null", "a: b", "- x", "", "é", "{0..1}", "1_000", ".inf"])
def test_yaml_quotes_what_another_reader_would_misread(text):
    written = mr.Recipe("a").op("o", value=text or " ").to_yaml()
    assert f"value: {json.dumps(text or ' ', ensure_ascii=False)}" in written


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mr.Recipe(""), "source must be a URI"),
        (lambda: mr.Recipe([]), "source must be a URI"),
        (lambda: mr.Recipe("a").op("o", x=float("nan")), "o.x is nan, which is not a finite number"),
        (lambda: mr.Recipe("a").op("o", x=b"raw"), "o.x is a bytes"),
        (lambda: mr.Recipe("a").op("o", x=object()), "o.x is a object"),
        (lambda: mr.Recipe.from_json("{"), "recipe is not JSON"),
        (lambda: mr.Recipe.from_yaml("a: [b"), "recipe is not YAML"),
        (lambda: mr.Recipe.from_yaml("[a]"), "a recipe must be a mapping"),
        (lambda: mr.Recipe.from_yaml("operators: []"), "source is missing"),
        (lambda: mr.Recipe.from_yaml("{source: a, operators: {x: 1}}"), "operators must be a list"),
        (lambda: mr.Recipe.from_yaml("{source: a, operators: [{x: 1, y: 2}]}"), "operator 1: write one operator an entry"),
        (lambda: mr.Recipe.from_yaml("{source: a, operators: [{x: 1}]}"), "the parameters of x must be a mapping"),
    ],
)
def test_wrong_shapes_are_named(make, words):
    with pytest.raises(mr.InvalidError, match=words):
        make()


def test_numpy_numbers_are_numbers():
    import numpy

    recipe = mr.Recipe("a").op("o", i=numpy.int64(3), f=numpy.float32(0.5), b=[numpy.uint8(1)])
    assert recipe.to_dict()["operators"] == [{"o": {"b": [1], "f": 0.5, "i": 3}}]


def test_yaml_without_pyyaml_says_what_to_do(monkeypatch):
    from millrace import _yaml

    _yaml._classes.cache_clear()
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ImportError, match="pip install pyyaml"):
        mr.Recipe("a").to_yaml()


def test_repr_reads_like_the_code():
    assert repr(mr.Recipe("a.tar").center_crop("image", 8)) == "Recipe('a.tar').center_crop(field='image', size=8)"
