from __future__ import annotations

import pytest

import millrace as mr
from millrace._config import Batching
from millrace._process import PROCESS
from millrace._rpc import location


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": None}, "batch_size is missing"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"batch_size": 2.0}, "batch_size=2.0 is not a whole number"),
        ({"batch_size": True}, "batch_size=True is not a whole number"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"seed": 2**64}, "must be at most 18446744073709551615"),
        ({"shuffle": "blocks"}, "shuffle='blocks' is none of"),
        ({"shuffle": 2}, "shuffle=2 is none of"),
        ({"tail": "cut"}, "tail='cut' is none of 'pad', 'drop', 'short'"),
        ({"tail": "pad", "drop_last": True}, "drop_last=True contradicts tail='pad'"),
        ({"tail": "drop", "drop_last": False}, "drop_last=False contradicts tail='drop'"),
        ({"on_mismatch": "force"}, "on_mismatch='force' is none of 'error', 'continue'"),
        ({"epochs": 0}, "epochs=0 must be at least 1"),
        ({"prefetch_batches": 0}, "prefetch_batches=0 must be at least 1"),
        ({"timeout": -1}, "timeout=-1 is not a number of seconds"),
        ({"timeout": "60"}, "timeout='60' is not a number of seconds"),
        ({"rank": 0}, "rank and world_size belong together"),
        ({"rank": 2, "world_size": 2}, "rank=2 must be below world_size=2"),
        ({"rank": 0, "world_size": 3, "batch_size": None, "global_batch_size": 8, "job": "x"}, "cut evenly among 3 ranks"),
        ({"global_batch_size": 6}, "global_batch_size=6 is no multiple of batch_size=4 × 1 ranks = 4"),
    ],
)  # fmt: skip
def test_wrong_options_say_what_is_wrong(options, words, loader):
    with pytest.raises(mr.InvalidError, match=words):
        _ = loader(**({"batch_size": 4} | options)).rank


def test_a_recipe_file_that_is_missing(tmp_path):
    with pytest.raises(mr.InvalidError, match=r"recipe .*none\.yaml: No such file or directory"):
        mr.DataLoader(tmp_path / "none.yaml", 4)


@pytest.mark.parametrize(
    ("shuffle", "word"),
    [(False, "none"), (None, "none"), (True, "block"), ("block", "block"), ("full", "full"), ("none", "none")],
)
def test_shuffle_words(shuffle, word, loader, sidecar):
    len(loader(shuffle=shuffle))
    assert sidecar.opened[-1]["settings"]["shuffle"] == word


def test_options_reach_the_sidecar(loader, sidecar, monkeypatch):
    monkeypatch.setenv("MILLRACE_ON_MISMATCH", "continue")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    made = loader(
        batch_size=2, shuffle=True, seed=5, drop_last=True, global_batch_size=16, job="run", rank=0, world_size=2, epochs=3,
        prefetch_batches=4, on_error="raise", max_bad=7, max_bad_fraction=0.25,
    )  # fmt: skip
    assert made.drop_last
    assert (made.num_workers, made.batch_size, made.dataset) == (0, 2, mr.Recipe("fake://rows=20"))
    assert len(made) == 4
    assert sidecar.opened == [
        {
            "version": 1,
            "job": "run",
            "recipe": '{"source": "fake://rows=20"}',
            "settings": {
                "seed": 5,
                "shuffle": "block",
                "global_batch": 16,
                "accumulation": 4,
                "tail": "drop",
                "on_error": "raise",
                "prefetch": 4,
                "epochs": 3,
                "max_bad": 7,
                "max_bad_fraction": 0.25,
            },
            "rank": 0,
            "world_size": 2,
            "cursor": "",
            "continue_on_mismatch": True,
            "attempt": 2,
        }
    ]


def test_a_recipe_file_is_sent_as_it_is(loader, sidecar, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("source: fake://rows=8\n# a comment\n")
    made = loader(str(path))
    assert len(made) == 2
    assert sidecar.opened[-1]["recipe"] == "source: fake://rows=8\n# a comment\n"
    assert made.dataset == str(path)


@pytest.mark.parametrize(
    ("batch_size", "total", "world", "expected"),
    [(4, None, 3, (4, 12, 1)), (None, 12, 3, (4, 12, 1)), (1, 8, 8, (1, 8, 1)), (1, 8, 4, (1, 8, 2)), (1, 8, 2, (1, 8, 4))],
)
def test_accumulation_follows(batch_size, total, world, expected):
    assert Batching(batch_size, total).split(world) == expected


def test_options_of_torch_that_do_nothing_warn_once(sidecar):
    PROCESS._warned.clear()
    with pytest.warns(UserWarning) as caught:
        mr.DataLoader("fake://", 4, num_workers=8, persistent_workers=True, prefetch_factor=2, sampler=[1]).close()
    assert [str(w.message).split(":")[0] for w in caught] == [
        "millrace.DataLoader ignores num_workers=8",
        "millrace.DataLoader ignores persistent_workers=True",
        "millrace.DataLoader ignores prefetch_factor=2",
        "millrace.DataLoader ignores sampler=[1]",
    ]
    assert {w.filename for w in caught} == {__file__}
    mr.DataLoader("fake://", 4, num_workers=4).close()
    mr.DataLoader("fake://", 4, num_workers=0, persistent_workers=False, generator=None).close()


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [("unix:///a/b.sock", "grpc+unix:///a/b.sock"), ("grpc://h:1", "grpc+tcp://h:1"), ("grpc+tls://h:1", "grpc+tls://h:1")],
)
def test_endpoints(endpoint, expected):
    assert location(endpoint) == expected


@pytest.mark.parametrize("endpoint", ["", "h:1", "http://h:1", "unix://", "unix://relative.sock", "/a/b.sock"])
def test_endpoints_that_are_none(endpoint):
    with pytest.raises(mr.InvalidError, match=r"is neither unix:///path/to\.sock nor grpc://host:port"):
        location(endpoint)
