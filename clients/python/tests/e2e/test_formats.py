"""Files that the libraries of their formats wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

import millrace as mr

from .conftest import SAMPLES, label, pixels, png
from .test_stream import numbers


def table(start: int, stop: int) -> pa.Table:
    """Samples with an image as Hugging Face has them, and columns of other kinds, some of them null."""
    samples = range(start, stop)
    return pa.table(
        {
            "image": pa.array([{"bytes": png(pixels(abs(n))), "path": f"{n}.png"} for n in samples]),
            "label": pa.array([label(n) for n in samples], pa.int32()),
            "scores": pa.array([[n / 4, None] if n % 3 else [n / 4] for n in samples], pa.list_(pa.float64())),
            "word": pa.array([None if n % 5 == 0 else "even" for n in samples]).dictionary_encode(),
            "flags": pa.array([[{"on": n % 2 == 0}] for n in samples]),
        }
    )


def write(kind: str, path: str) -> None:
    # What a slice holds begins in the midst of its buffers.
    data = pa.concat_tables([table(-40, 0), table(0, SAMPLES)]).unify_dictionaries().combine_chunks().slice(40)
    if kind == "stream":  # as Hugging Face's datasets write it
        with pa.ipc.new_stream(path, data.schema) as out:
            out.write_table(data, max_chunksize=17)
    elif kind == "file":
        with pa.ipc.new_file(path, data.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as out:
            out.write_table(data, max_chunksize=30)
    else:
        pyarrow.feather.write_feather(data, path, compression=kind)


@pytest.mark.parametrize("kind", ["stream", "file", "lz4", "uncompressed"])
@pytest.mark.parametrize("shuffle", [False, "block", "full"])
def test_arrow_files_that_pyarrow_wrote(loader, tmp_path: Path, kind: str, shuffle) -> None:
    write(kind, str(tmp_path / "data-00000-of-00001.arrow"))
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (tmp_path / "dataset_info.json").write_text("{}")
    recipe = mr.Recipe(str(tmp_path), fields={"image": "image", "label": "label", "scores": "scores", "flags": "flags"})
    recipe = (
        recipe.decode_image("image")
        .center_crop("image", 8)
        .label("label")
        .label("score", source="scores", key="0", dtype="float64")
        .label("on", source="flags", key="0.on")
    )
    recipe = recipe.output(image={"layout": "HWC"}, label={}, score={"dtype": "float64"}, on={})
    batches = list(loader(recipe, 4, shuffle=shuffle))
    assert sorted(numbers(batches)) == list(range(SAMPLES))
    for batch in batches:
        for row, sample in enumerate(batch.meta.samples.tolist()):
            assert np.array_equal(np.asarray(batch["image"][row]), pixels(sample))
            assert int(batch["label"][row]) == label(sample)
            assert float(batch["score"][row]) == sample / 4
            assert int(batch["on"][row]) == (sample % 2 == 0)
