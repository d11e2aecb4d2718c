from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

import millrace as mr
from millrace._launch import Ranks, attempt, default_job, resolve_host, resolve_ranks

DIMS = ("dp_replicate", "dp_shard")
TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip


def mesh(names, shape, coordinate):
    return SimpleNamespace(mesh_dim_names=names, shape=shape, get_coordinate=lambda: coordinate)


def ranks(rank=None, world_size=None, device_mesh=None, dims=DIMS, env=None):
    found = resolve_ranks(rank, world_size, device_mesh, dims, env or {})
    return found.rank, found.world_size


def test_arguments_win_over_mesh_over_distributed_over_environment(monkeypatch):
    env = {"RANK": "1", "WORLD_SIZE": "2"}
    assert ranks() == (0, 1)
    assert ranks(env=env) == (1, 2)
    dist = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 3, get_world_size=lambda: 4)
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    assert ranks(env=env) == (3, 4)
    assert ranks(env=env, device_mesh=mesh(("dp_shard",), (8,), (5,))) == (5, 8)
    assert ranks(6, 7, mesh(("dp_shard",), (8,), (5,)), env=env) == (6, 7)


@pytest.mark.parametrize(
    ("names", "shape", "coordinate", "dims", "expected"),
    [
        (("dp_replicate", "dp_shard"), (2, 4), (1, 2), DIMS, (6, 8)),
        (("dp_replicate", "dp_shard", "tp"), (2, 4, 2), (1, 2, 1), DIMS, (6, 8)),
        (("pp", "dp_shard", "tp"), (2, 4, 2), (1, 2, 1), DIMS, (2, 4)),
        (("dp", "tp"), (4, 2), (3, 0), ("dp",), (3, 4)),
        (("anything",), (4,), (3,), DIMS, (3, 4)),
        (None, (4,), (3,), DIMS, (3, 4)),
    ],
)
def test_mesh_gives_one_rank_to_all_peers_of_a_data_parallel_coordinate(names, shape, coordinate, dims, expected):
    assert ranks(device_mesh=mesh(names, shape, coordinate), dims=dims) == expected


def peers(*arguments, **options):
    found = resolve_ranks(*arguments, **{"env": {}, **options})
    return found.rank, found.world_size, found.peer, found.peers


def test_processes_that_differ_in_other_dimensions_alone_are_peers():
    three = mesh(("pp", "dp_shard", "tp"), (2, 4, 2), (1, 2, 0))
    assert peers(None, None, three, DIMS) == (2, 4, 2, 4)
    assert peers(None, None, three, DIMS, peers=4) == (2, 4, 2, 4)
    assert peers(None, None, three, DIMS, peers=1) == (2, 4, 0, 1)
    with pytest.raises(mr.InvalidError, match=r"peers=3, but in device_mesh .* 4 processes share"):
        peers(None, None, three, DIMS, peers=3)


def test_consecutive_processes_can_be_peers():
    env = {"RANK": "5", "WORLD_SIZE": "8"}
    assert peers(None, None, None, DIMS, env=env, peers=2) == (2, 4, 1, 2)
    assert peers(1, 2, None, DIMS, env=env, peer=2, peers=3) == (1, 2, 2, 3)
    with pytest.raises(mr.InvalidError, match=r"8 processes .* cannot be cut into groups of peers=3"):
        peers(None, None, None, DIMS, env=env, peers=3)
    assert str(resolve_ranks(1, 2, None, DIMS, {}, 2, 3)) == "peer 2 of 3 of rank 1 of 2 (from rank= and world_size=)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peer": 0}, "peer belongs to rank, world_size and peers"),
        ({"rank": 0, "world_size": 1, "peers": 2}, "which of the peers=2 processes of rank 0 is this"),
        ({"rank": 0, "world_size": 1, "peer": 2, "peers": 2}, "peer=2 must be below peers=2"),
        ({"peers": 0}, "peers"),
    ],
)
def test_half_of_a_place_is_refused(options, message):
    with pytest.raises(mr.InvalidError, match=message):
        mr.DataLoader("x.tar", 4, **options)


def test_mesh_that_cannot_be_read_is_named():
    with pytest.raises(mr.InvalidError, match=r"none of dp_dims .* is a dimension of device_mesh \('dp', 'tp'\)"):
        ranks(device_mesh=mesh(("dp", "tp"), (2, 2), (0, 0)))
    with pytest.raises(mr.InvalidError, match="not part of device_mesh"):
        ranks(device_mesh=mesh(("dp_shard",), (2,), None))
    with pytest.raises(mr.InvalidError, match="RANK='x' is not a number"):
        ranks(env={"RANK": "x", "WORLD_SIZE": "2"})


def test_a_later_change_of_ranks_is_an_error(loader, monkeypatch):
    made = loader()
    next(iter(made))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(mr.ConflictError, match=r"first used as rank 0 of 1 .* now it would be rank 0 of 4 .*init_process_group"):
        iter(made)


def test_ranks_are_resolved_at_first_use(loader, monkeypatch):
    made = loader(batch_size=None, global_batch_size=8)
    assert made.batch_size is None
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (made.rank, made.world_size, made.batch_size) == (1, 4, 2)


def test_host_of_torchrun():
    host = resolve_host(TORCHRUN)
    assert (host.local_rank, host.local_world_size, host.world_size) == (1, 2, 2)
    assert resolve_host({"RANK": "0", "WORLD_SIZE": "1"}) is None
    same = resolve_host(TORCHRUN | {"LOCAL_RANK": "0", "RANK": "0"})
    assert same.key == host.key
    for name, value in (
        ("MASTER_ADDR", "h"),
        ("MASTER_PORT", "1"),
        ("TORCHELASTIC_RUN_ID", "r"),
        ("TORCHELASTIC_RESTART_COUNT", "1"),
    ):
        assert resolve_host(TORCHRUN | {name: value}).key != host.key


def test_attempt():
    assert attempt({}) == 0
    assert attempt({"TORCHELASTIC_RESTART_COUNT": ""}) == 0
    assert attempt({"TORCHELASTIC_RESTART_COUNT": "3"}) == 3


def test_name_of_a_run():
    alone, two = Ranks(0, 1, "x"), Ranks(0, 2, "x")
    assert default_job(two, {"TORCHELASTIC_RUN_ID": "abc"}, "u") == "abc"
    assert default_job(two, {"SLURM_JOB_ID": "12"}, "u") == "slurm-12"
    assert default_job(two, {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3"}, "u") == "slurm-12.3"
    assert default_job(two, {"PBS_JOBID": "5.host"}, "u") == "pbs-5.host"
    assert default_job(alone, {}, "u") == "u"
    assert default_job(two, TORCHRUN, "u") == f"torchrun-29500-{os.getppid()}"
    for env in ({}, TORCHRUN | {"WORLD_SIZE": "4"}):
        with pytest.raises(mr.InvalidError, match=r"needs a name that all ranks share.*job="):
            default_job(two, env, "u")


def test_loaders_of_one_script_get_numbers(loader):
    first, second, other = loader(job="a"), loader(job="a"), loader(job="b")
    assert [each.job for each in (first, second, other)] == ["a", "a/1", "b"]
    first.close()
    assert loader(job="a").job == "a"
    assert loader(job="a", rank=0, world_size=2).job == "a"
    assert loader(job="a", rank=1, world_size=2).job == "a"
    unnamed = loader(), loader()
    assert unnamed[1].job == unnamed[0].job + "/1"
