"""What the launcher (torchrun, Slurm, or nobody) tells this process: rank, world size, run, restarts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.errors import InvalidError


@dataclass(frozen=True)
class Ranks:
    """The data-parallel coordinates of this process, and who said so."""

    rank: int
    world_size: int
    source: str
    peer: int = 0
    peers: int = 1
    """How many processes share the batches of each rank, and which of them this is."""

    def __str__(self) -> str:
        peer = f"peer {self.peer} of {self.peers} of " if self.peers > 1 else ""
        return f"{peer}rank {self.rank} of {self.world_size} (from {self.source})"


@dataclass(frozen=True)
class Host:
    """The launcher's view of this host: which of its processes this is."""

    local_rank: int
    local_world_size: int
    world_size: int
    key: str
    """Equal for the processes of one run on this host, and for no others that live at the same time."""


def resolve_ranks(
    rank: int | None,
    world_size: int | None,
    device_mesh: Any,
    dp_dims: Sequence[str],
    env: Mapping[str, str],
    peer: int | None = None,
    peers: int | None = None,
) -> Ranks:
    """Find the data-parallel rank and world size: arguments, device mesh, torch.distributed, environment, 0 of 1."""
    if rank is not None and world_size is not None:
        return Ranks(rank, world_size, "rank= and world_size=", peer or 0, peers or 1)
    if device_mesh is not None:
        return _from_mesh(device_mesh, dp_dims, peers)
    if distributed_is_initialized():
        dist = sys.modules["torch.distributed"]
        return _consecutive(dist.get_rank(), dist.get_world_size(), "torch.distributed", peers or 1)
    if "RANK" in env and "WORLD_SIZE" in env:
        return _consecutive(_integer(env, "RANK"), _integer(env, "WORLD_SIZE"), "RANK and WORLD_SIZE", peers or 1)
    return _consecutive(0, 1, "no launcher", peers or 1)


def _consecutive(rank: int, world_size: int, source: str, peers: int) -> Ranks:
    """Cut the processes of a run into groups of peers, each of them a data-parallel rank."""
    if world_size % peers:
        raise InvalidError(f"{world_size} processes (from {source}) cannot be cut into groups of peers={peers}")
    return Ranks(rank // peers, world_size // peers, source, rank % peers, peers)


def distributed_is_initialized() -> bool:
    """Say whether a default process group exists, without importing torch."""
    dist: Any = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_available()) and bool(dist.is_initialized())


def _from_mesh(mesh: Any, dp_dims: Sequence[str], wanted: int | None) -> Ranks:
    names = tuple(mesh.mesh_dim_names or ())
    shape = tuple(int(n) for n in mesh.shape)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise InvalidError("this process is not part of device_mesh, so it has no data-parallel rank")
    dims = [i for i, name in enumerate(names) if name in dp_dims]
    if not dims and len(shape) == 1:
        dims = [0]
    if not dims:
        raise InvalidError(
            f"none of dp_dims {tuple(dp_dims)} is a dimension of device_mesh {names or shape}: "
            "name its data-parallel dimensions with dp_dims=(…)"
        )
    rank, world = 0, 1
    for i in dims:
        rank, world = rank * shape[i] + int(coordinate[i]), world * shape[i]
    peer, peers = 0, 1
    for i, size in enumerate(shape):
        if i not in dims:
            peer, peers = peer * size + int(coordinate[i]), peers * size
    if wanted == 1:
        peer, peers = 0, 1  # whoever reads passes batches on by itself
    if wanted not in (None, peers):
        raise InvalidError(
            f"peers={wanted}, but in device_mesh {names or shape} {peers} processes share each data-parallel coordinate"
        )
    return Ranks(rank, world, "device_mesh", peer, peers)


def resolve_host(env: Mapping[str, str]) -> Host | None:
    """Find what torchrun says of this host; None when it did not start this process."""
    if "LOCAL_RANK" not in env or "LOCAL_WORLD_SIZE" not in env:
        return None
    run = (env.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"))
    return Host(
        local_rank=_integer(env, "LOCAL_RANK"),
        local_world_size=_integer(env, "LOCAL_WORLD_SIZE"),
        world_size=_integer(env, "WORLD_SIZE") if "WORLD_SIZE" in env else _integer(env, "LOCAL_WORLD_SIZE"),
        key="\0".join((str(os.getuid()), *run)),
    )


def attempt(env: Mapping[str, str]) -> int:
    """How often the launcher has restarted this run."""
    return _integer(env, "TORCHELASTIC_RESTART_COUNT") if env.get("TORCHELASTIC_RESTART_COUNT") else 0


def default_job(ranks: Ranks, env: Mapping[str, str], unique: str) -> str:
    """Name a run that has no name: the launcher's id, else one that no other process has.

    Raises
    ------
    InvalidError
        When several ranks would have to agree on a name and nothing that they share is known.
    """
    run_id = env.get("TORCHELASTIC_RUN_ID", "")
    if run_id not in ("", "none"):
        return run_id
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"):
        if env.get(name):
            step = env.get("SLURM_STEP_ID", "") if name == "SLURM_JOB_ID" else ""
            return f"{name.split('_')[0].lower()}-{env[name]}" + (f".{step}" if step else "")
    if ranks.world_size == 1 and ranks.peers == 1:
        return unique
    host = resolve_host(env)
    if host is not None and host.local_world_size >= host.world_size:
        # torchrun's default run id is the same for all runs; the agent is the parent of all ranks of its host.
        return f"torchrun-{env.get('MASTER_PORT', '0')}-{os.getppid()}"
    raise InvalidError(
        f"{ranks} needs a name that all ranks share, and no launcher gave a run id: set DataLoader(job='…') on every rank"
    )


def _integer(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise InvalidError(f"environment variable {name}={env[name]!r} is not a number") from None
