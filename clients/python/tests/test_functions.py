"""How functions become operators of a recipe."""

from __future__ import annotations

import base64
import os
import pickle
import sys
import threading

import pytest

import millrace as mr
from millrace._functions import pickled
from millrace._local import _python_settings

RECIPE = mr.Recipe("a.tar")


def operators(recipe):
    return recipe._document["operators"]


def test_importable_functions_go_by_name():
    assert operators(RECIPE.map(os.path.basename, input=["text"]))[0] == {
        "python": {"call": "posixpath:basename", "input": ["text"]}
    }
    assert operators(RECIPE.filter(mr.Recipe, version=3)) == [
        {"python": {"call": "millrace.recipe:Recipe", "mode": "filter", "version": 3}}
    ]
    assert operators(RECIPE.flat_map("pkg.mod:f", args={"n": 2}, timeout=1.5))[0]["python"] == {
        "call": "pkg.mod:f",
        "mode": "flat_map",
        "args": {"n": 2},
        "timeout": 1.5,
    }
    assert operators(RECIPE.map_batches("m:f", batch_size=8, format="arrow", keeps_rows=False))[0]["python"] == {
        "call": "m:f",
        "mode": "batches",
        "batch_size": 8,
        "format": "arrow",
        "keeps_rows": False,
    }
    assert RECIPE.map(os.path.basename).to_dict()["operators"] == operators(RECIPE.map(os.path.basename))


def test_all_others_are_shipped():
    offset = 5
    recipe = RECIPE.decode_image().map(lambda row: {"n": row["n"] + offset}, version="a").select("n")
    call = operators(recipe)[1]["python"]["call"]
    assert call.endswith(":test_all_others_are_shipped.<locals>.<lambda>")
    sent = mr.Recipe.from_json(recipe._sent())
    function = pickle.loads(base64.b64decode(operators(sent)[1]["python"]["pickle"]))
    assert function({"n": 1}) == {"n": 6}
    for form in (recipe.to_json, recipe.to_yaml, recipe.to_dict):
        with pytest.raises(mr.InvalidError, match=r"operator 2: .*<lambda> cannot be written down, only shipped"):
            form()


def test_recipes_with_the_same_functions_are_equal():
    def one(row):
        return row

    def two(row):
        return row

    assert RECIPE.map(one) == RECIPE.map(one)
    assert hash(RECIPE.map(one)) == hash(RECIPE.map(one))
    assert RECIPE.map(one) != RECIPE.map(two)
    assert RECIPE.map(one) != RECIPE
    assert "<locals>.one" in repr(RECIPE.map(one))


def test_what_cannot_be_shipped():
    with pytest.raises(mr.InvalidError, match="neither a function nor an import path"):
        RECIPE.map(3)
    with pytest.raises(mr.InvalidError, match=r"m:f cannot be pickled: .*; move it to a module"):
        lock = threading.Lock()
        pickled("m:f", lambda row: lock)
    large = b"x" * 800_000
    with pytest.raises(mr.InvalidError, match=r"m:f has 800,\d+ bytes with what it refers to"):
        pickled("m:f", lambda row: large)


def test_without_cloudpickle(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ImportError, match=r"m:f is not importable by name.*pip install 'millrace\[functions\]'"):
        pickled("m:f", lambda row: row)


def test_the_local_sidecar_runs_functions_as_the_script_would(monkeypatch):
    monkeypatch.setattr(sys, "path", ["", "/own/code", f"{sys.base_prefix}/lib/python3"])
    assert _python_settings({}) == {
        "MILLRACE_ALLOW_PYTHON": "shipped",
        "MILLRACE_PYTHON_EXECUTABLE": sys.executable,
        "PYTHONPATH": f"{os.getcwd()}:/own/code",
    }
    assert _python_settings({"MILLRACE_ALLOW_PYTHON": "none", "MILLRACE_PYTHON_EXECUTABLE": "python3.14"}) == {}
