from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import sys

import numpy as np
import pyarrow as pa
import pytest
from fake_sidecar import order

import millrace as mr
from millrace._convert import tensor_library

KINDS = "image,label,half,text,raw,flag,mask,score,ragged"


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.fixture
def torch():
    import torch

    return torch


def test_every_kind_of_column_as_numpy(loader, without_torch):
    batch = next(iter(loader(f"fake://rows=8&columns={KINDS}")))
    numbers = np.array(order(0, 0, 8)[:4])
    assert {name: (v.dtype.name, v.shape) for name, v in batch.items() if isinstance(v, np.ndarray)} == {
        "image": ("uint8", (4, 2, 3)),
        "label": ("int64", (4,)),
        "half": ("uint16", (4, 2)),
        "flag": ("bool", (4,)),
        "mask": ("bool", (4, 3)),
        "score": ("float32", (4,)),
    }
    assert (batch["image"][:, 0, 0] == numbers * 7 % 256).all()
    assert (batch["label"] == numbers % 10).all()
    assert (batch["flag"] == (numbers % 2 == 0)).all()
    assert (batch["mask"] == [[(s >> i) & 1 for i in range(3)] for s in numbers]).all()
    assert (batch["score"] == numbers / 2).all()
    assert batch["text"] == [f"caption {s}" for s in numbers]
    assert batch["raw"] == [bytes([s]) for s in numbers]
    assert [r.shape for r in batch["ragged"]] == [(s % 3, 2) for s in numbers]
    assert all((r == s).all() for r, s in zip(batch["ragged"], numbers, strict=True))


def test_every_kind_of_column_as_torch(loader, torch):
    batch = next(iter(loader(f"fake://rows=8&columns={KINDS}")))
    assert {name: (v.dtype, tuple(v.shape)) for name, v in batch.items() if isinstance(v, torch.Tensor)} == {
        "image": (torch.uint8, (4, 2, 3)),
        "label": (torch.int64, (4,)),
        "half": (torch.bfloat16, (4, 2)),
        "flag": (torch.bool, (4,)),
        "mask": (torch.bool, (4, 3)),
        "score": (torch.float32, (4,)),
    }
    numbers = torch.tensor(order(0, 0, 8)[:4])
    assert torch.equal(batch["label"], numbers % 10)
    assert torch.equal(batch["mask"], torch.stack([(numbers >> i) & 1 == 1 for i in range(3)], dim=1))
    assert torch.equal(batch.meta.samples, numbers)
    assert batch.meta.valid.dtype == torch.bool
    assert batch.meta.valid.all()
    assert [tuple(r.shape) for r in batch["ragged"]] == [(int(s) % 3, 2) for s in numbers]


def test_tensors_are_writable_and_nobody_elses(loader, without_torch):
    kept = list(itertools.islice(loader("fake://rows=80"), 20))
    before = [batch["image"].copy() for batch in kept]
    for batch in kept[::2]:
        batch["image"][...] = 0
        batch["label"] += 1
        batch.meta.valid[0] = False
    assert all((b["image"] == i).all() for b, i in zip(kept[1::2], before[1::2], strict=True))
    assert all(batch["image"].ctypes.data % 64 == 0 for batch in kept)


def test_torch_tensors_are_writable_without_a_warning(loader, torch):
    batch = next(iter(loader()))
    batch["image"].zero_()
    batch["label"].add_(1)
    batch.meta.samples.add_(1)


def test_kept_batches_hold_no_descriptors_and_no_messages(loader, without_torch):
    made = loader("fake://rows=2000", batch_size=4)
    iterator = iter(made)
    kept = [next(iterator) for _ in range(10)]
    open_files = len(os.listdir("/proc/self/fd"))
    gc.collect()
    held = pa.total_allocated_bytes()
    kept += [next(iterator) for _ in range(400)]
    assert len(os.listdir("/proc/self/fd")) <= open_files + 2
    gc.collect()
    # Per batch 24 + 32 bytes of columns and some 100 of keys, each rounded up to 64: not the whole message.
    assert (pa.total_allocated_bytes() - held) / 400 < 600


def test_rows_without_a_value_are_named(loader):
    with pytest.raises(mr.BadDataError, match="column 'none' has no value in row 0"):
        next(iter(loader("fake://columns=none")))


def test_padding_is_masked(loader):
    last = list(loader("fake://rows=6"))[-1]
    assert last.meta.valid.tolist() == [True, True, False, False]
    assert (last.meta.rows, last.meta.valid_rows) == (4, 2)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_copies_keep_meta(loader, copied):
    batch = next(iter(loader()))
    twin = copied(batch)
    assert type(twin) is mr.Batch
    assert twin.meta.cursor == batch.meta.cursor
    assert twin.meta.keys == batch.meta.keys
    assert (twin["label"] == batch["label"]).all()
    assert "step=0" in repr(twin)


def test_a_batch_made_by_others_is_a_dict():
    assert mr.Batch({"a": 1}) == {"a": 1}
    assert mr.Batch({"a": 1}).meta is None


def test_neither_torch_nor_numpy_is_an_error_that_says_what_to_do(monkeypatch, without_torch):
    assert tensor_library() == "numpy"
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(mr.MillraceError, match="import torch before the first epoch, or pip install numpy"):
        tensor_library()


def test_pin_memory_without_a_gpu_warns(loader, without_torch):
    made = loader(pin_memory=True)
    with pytest.warns(UserWarning, match="pin_memory=True does nothing"):
        iter(made)
    assert len(list(made)) == 5
