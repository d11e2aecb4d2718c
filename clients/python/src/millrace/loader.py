"""The loader: torch's argument names, one exact order, state as one short string."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from millrace import _config as config
from millrace._batch import Batch
from millrace._launch import Ranks, attempt, default_job, distributed_is_initialized, resolve_ranks
from millrace._process import PROCESS
from millrace._session import Request, Session
from millrace._wire import Position, Settings
from millrace.errors import ConflictError, InvalidError, MillraceError, StallError
from millrace.recipe import Recipe

if TYPE_CHECKING:
    from millrace._cuda import DeviceStream
    from millrace._ringstream import RingStream
    from millrace._stream import Stream

__all__ = ["DataLoader", "Stats"]

_STATE_KEY = "millrace"
_NEVER = -1
UNKNOWABLE = -1
"""Length of an epoch whose rows cannot be counted beforehand."""
NOT_YET_KNOWN = -2
"""Length of an epoch before a session was opened."""


@dataclass(frozen=True)
class Stats:
    """What a loader has done since it was made.

    Attributes
    ----------
    batches, rows : int
        Batches handed out, and their rows without padding.
    waits : int
        How often a batch was not ready when it was asked for.
    wait_seconds : float
        Time spent in waiting for batches, all together.
    seconds : float
        Time from the first request to the last batch.
    """

    batches: int = 0
    rows: int = 0
    waits: int = 0
    wait_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def wait_fraction(self) -> float:
        """Part of the time that was spent in waiting for batches."""
        return self.wait_seconds / self.seconds if self.seconds > 0 else 0.0


class DataLoader:
    """Batches of one rank, in an order that depends only on dataset, recipe and seed.

    Each ``iter()`` is one epoch; the next one begins the next epoch by itself, also after a ``break``. After an error
    it goes on behind the last batch that was returned. A batch is a dict of tensors with ``meta``; the tensors are
    torch's when torch is imported, else numpy's. Batches are read ahead by a thread; there are no worker processes.

    Parameters
    ----------
    source : Recipe, str or sequence of str
        A recipe, the name of a recipe file (``.yaml``, ``.yml``), or URIs of a dataset to take as it is.
    batch_size : int, optional
        Rows of one batch of one rank.
    shuffle : bool or {"block", "full", "none"}
        True means ``"block"``: samples of about a hundred random places are mixed, at large reads. ``"full"`` is
        uniform over all samples, at a read for each.
    seed : int
        The order and all random operators follow from it.
    tail : {"pad", "drop", "short"}, optional
        What becomes of the rows that do not fill the last global batch. By default they are padded and marked in ``meta.valid``.
    drop_last : bool, optional
        Torch's name of ``tail="drop"``.
    global_batch_size : int, optional
        Rows of one optimizer step over all ranks. With ``batch_size`` given too, gradients are accumulated over as many
        batches as it takes, and every world size sees the same optimizer steps.
    job : str, optional
        Name of the run; the same on all ranks. The launcher's run id by default. Further loaders of the same name in
        one process are called ``name/1``, ``name/2``, ….
    endpoint : str, optional
        ``unix:///path``, ``grpc://host:port`` or ``grpc+tls://host:port`` of a sidecar. By default MILLRACE_ENDPOINT, else
        one is started here and stopped at exit. With MILLRACE_TLS_CA, and MILLRACE_TLS_CERT and MILLRACE_TLS_KEY where the
        sidecar asks for a certificate, connections over TCP are encrypted.
    rank, world_size : int, optional
        Data-parallel rank and world size. By default those of ``device_mesh``, torch.distributed or the environment.
    device_mesh : torch.distributed.device_mesh.DeviceMesh, optional
        Mesh to take them from.
    dp_dims : str or sequence of str
        Its data-parallel dimensions. Processes that differ only in the others (tensor, pipeline, context parallel) are
        *peers*: they get the same batches, each its own copy of what is made and kept once.
    peer, peers : int, optional
        Which of how many processes that share each data-parallel rank this is, beside ``rank`` and ``world_size``. With
        torch.distributed or a launcher, ``peers=n`` alone lets each ``n`` consecutive processes be one rank. With
        ``device_mesh``, ``peers=1`` says that one process of each coordinate reads.
    epochs : int, optional
        Epochs of the job; no limit by default.
    prefetch_batches : int
        Batches that are ready ahead.
    on_error : str
        What happens to a sample that cannot be decoded, or at which an operator fails. ``"raise"`` ends the epoch with an
        error that names it, ``"skip"`` leaves it out, ``"replace"`` puts another sample of its partition in its place. What is
        skipped or replaced depends on the data alone, so every run sees the same batches.
    max_bad : int, optional
        Bad samples in a row that ``"skip"`` and ``"replace"`` put up with; 100 by default.
    max_bad_fraction : float, optional
        Part of an epoch's samples that may be bad; 0.1 by default.
    on_mismatch : {"error", "continue"}, optional
        What happens to a state of a recipe that makes other pixels. MILLRACE_ON_MISMATCH by default, else an error.
    timeout : float
        Seconds to wait for a batch before :class:`StallError` says who waits for what; 0 means no limit.
    pin_memory : bool
        Put tensors of torch into page-locked memory. Memory that is shared with the sidecar is locked where it is, once;
        a slot of it goes back when the current stream has done what it was asked for by the time the batch is dropped.
    pin_memory_device : str
        As in torch; ``"cuda"`` or nothing.
    device : str, int or torch.device, optional
        GPU that batches are copied to, ahead and on a stream of their own. They are handed out when the current stream can
        use them. It implies ``pin_memory=True``.
    transport : {"auto", "ring", "flight"}, optional
        How batches come from a sidecar of this host: ``"ring"`` through shared memory, without a copy, or ``"flight"`` in
        messages. By default MILLRACE_TRANSPORT, else ``"auto"``: through shared memory where that can be had.
    collate_fn : callable, optional
        Applied to each batch, which is stacked already. What it returns is handed out instead.
    num_workers, persistent_workers, multiprocessing_context, worker_init_fn, prefetch_factor, generator, sampler
        Accepted and ignored, each with one warning that says why.

    Attributes
    ----------
    dataset : Recipe or str
        What the loader reads.
    batch_size : int or None
        Rows of one batch of one rank; None until ranks are known, if only ``global_batch_size`` was given.
    drop_last : bool
        Whether ``tail`` is ``"drop"``.
    num_workers : int
        0.
    """

    num_workers = 0

    def __init__(
        self,
        source: Recipe | str | os.PathLike[str] | Sequence[str],
        batch_size: int | None = None,
        shuffle: bool | str | None = False,
        *,
        seed: int = 0,
        tail: str | None = None,
        drop_last: bool | None = None,
        global_batch_size: int | None = None,
        job: str | None = None,
        endpoint: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        device_mesh: Any = None,
        dp_dims: str | Sequence[str] = ("dp_replicate", "dp_shard"),
        peer: int | None = None,
        peers: int | None = None,
        epochs: int | None = None,
        prefetch_batches: int = 2,
        on_error: str = "raise",
        max_bad: int | None = None,
        max_bad_fraction: float | None = None,
        on_mismatch: str | None = None,
        timeout: float = 60.0,
        pin_memory: bool = False,
        pin_memory_device: str = "",
        device: Any = None,
        transport: str | None = None,
        collate_fn: Callable[[Batch], Any] | None = None,
        num_workers: int = 0,
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
        worker_init_fn: Any = None,
        prefetch_factor: int | None = None,
        generator: Any = None,
        sampler: Any = None,
    ) -> None:
        if (rank is None) != (world_size is None):
            raise InvalidError("rank and world_size belong together: give both or neither")
        if rank is not None and world_size is not None:
            count = config.count("world_size", world_size, 1)
            if config.count("rank", rank, 0) >= count:
                raise InvalidError(f"rank={rank} must be below world_size={count}")
        peers = config.optional_count("peers", peers, 1)
        if peer is not None and (rank is None or peers is None):
            raise InvalidError("peer belongs to rank, world_size and peers: give all four")
        if rank is not None and (peers or 1) > 1 and peer is None:
            raise InvalidError(f"which of the peers={peers} processes of rank {rank} is this? Give peer= too")
        if peer is not None and config.count("peer", peer, 0) >= (peers or 1):
            raise InvalidError(f"peer={peer} must be below peers={peers}")
        self.dataset, self._recipe = config.recipe_text(source)
        self._batching = config.batching(batch_size, global_batch_size)
        self.batch_size = self._batching.batch_size
        self._seed = config.count("seed", seed, 0, 2**64 - 1)
        self._shuffle = config.shuffle_word(shuffle)
        self._tail = config.tail_word(tail, drop_last)
        self.drop_last = self._tail == "drop"
        self._epochs = config.optional_count("epochs", epochs, 1) or 0
        self._prefetch = config.count("prefetch_batches", prefetch_batches, 1)
        self._on_error = str(on_error)
        self._max_bad = config.optional_count("max_bad", max_bad, 1) or 0
        self._max_bad_fraction = config.optional_fraction("max_bad_fraction", max_bad_fraction) or 0.0
        self._continue_on_mismatch = config.continues_on_mismatch(on_mismatch)
        self._timeout = config.timeout_seconds(timeout)
        config.pinned_device(pin_memory_device)
        self._device = config.device_name(device)
        self._pin_memory = bool(pin_memory)
        self._transport = config.transport_word(transport)
        self._collate_fn = collate_fn
        self._endpoint = endpoint
        self._rank_arguments = (rank, world_size, device_mesh, (dp_dims,) if isinstance(dp_dims, str) else tuple(dp_dims))
        self._peer_arguments = (peer, peers)
        self._job_argument = job or ""
        config.warn_of_ignored(
            {
                "num_workers": num_workers,
                "persistent_workers": persistent_workers,
                "multiprocessing_context": multiprocessing_context,
                "worker_init_fn": worker_init_fn,
                "prefetch_factor": prefetch_factor,
                "generator": generator,
                "sampler": sampler,
            },
            stacklevel=2,
        )
        self._ranks: Ranks | None = None
        self._number = PROCESS.number(self, self._job_argument, self._place())
        self._clock = EpochClock()
        self._loads = 0
        self._cursor = ""
        self._next: Position | None = None
        self._session: Session | None = None
        self._epoch: Epoch | None = None
        self._closed = False
        self._tally = Tally()
        if distributed_is_initialized() or device_mesh is not None:
            self._resolve()

    # Iteration.

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch, and begin to read it at once."""
        PROCESS.check_fork()
        self._check_open()
        self._resolve()
        self._end_epoch()
        session = self._ensure_session()
        position = self._begin_at(session)
        if self._epochs and position.epoch >= self._epochs:
            raise InvalidError(
                f"job {session.opened.job!r} has {self._epochs} epochs (epochs={self._epochs}) and all are over: "
                "raise epochs=, or set_epoch() to one of them"
            )
        self._next = position
        device = self._gpu()
        stream = session.stream(position, self._cursor, device is not None or self._pins(), device)
        self._epoch = Epoch(stream, position.epoch)
        return EpochIterator(self, self._epoch)

    def __len__(self) -> int:
        """Batches of one rank in an epoch.

        Raises
        ------
        TypeError
            When nobody can know, because the recipe may drop or add rows.
        """
        self._check_open()
        self._ensure_session()
        if self._clock.length < 0:
            raise TypeError("the length of this loader is unknown, since its recipe may drop or add rows: iterate without len()")
        return self._clock.length

    def __bool__(self) -> bool:
        return True

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next ``iter()``. Epochs also advance without it.

        Calling it again changes nothing, and neither does naming the epoch that a loaded state lies in.

        Parameters
        ----------
        epoch : int
            Counted from 0.
        """
        self._clock.asked = config.count("epoch", epoch, 0)

    # State.

    def state_dict(self, after: Any = None) -> dict[str, str]:
        """Return where the loader is: one short string, the same on every rank and for every world size.

        Parameters
        ----------
        after : Batch, optional
            A batch of this loader to return the state after; by default the last one that was returned. Loops that
            read ahead pass the batch that they last trained on.
        """
        if after is None:
            return {_STATE_KEY: self._cursor}
        meta = getattr(after, "meta", after)
        cursor = getattr(meta, "cursor", None)
        if not isinstance(cursor, str):
            raise TypeError(
                f"state_dict(after=…) takes a batch of this loader or its meta, not {type(after).__name__}: "
                "a copy of a batch that some library made has no meta, so keep the batch that the loader returned"
            )
        return {_STATE_KEY: cursor}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where a state was taken; takes effect at the next ``iter()``.

        Parameters
        ----------
        state_dict : mapping
            What :meth:`state_dict` returned, on any rank and world size. An empty one means the beginning. One that was
            taken at the end of an epoch begins the next.
        """
        cursor = state_dict.get(_STATE_KEY, "") if isinstance(state_dict, Mapping) else None
        if not isinstance(cursor, str) or (state_dict and _STATE_KEY not in state_dict):
            raise InvalidError(f"this is no state of a millrace loader: it must be {{{_STATE_KEY!r}: '…'}} or empty")
        self._check_open()
        self._end_epoch()
        self._leave()
        self._cursor = cursor
        self._next = None
        self._loads += 1
        self._clock.asked = _NEVER

    # The rest.

    @property
    def sampler(self) -> EpochSetter:
        """What frameworks call ``set_epoch`` on."""
        return EpochSetter(self)

    @property
    def rank(self) -> int:
        """Data-parallel rank."""
        return self._resolve().rank

    @property
    def world_size(self) -> int:
        """Data-parallel world size."""
        return self._resolve().world_size

    @property
    def job(self) -> str:
        """Name of the job."""
        name = self._job_argument or default_job(self._resolve(), os.environ, PROCESS.unique)
        return f"{name}/{self._number}" if self._number else name

    def stats(self) -> Stats:
        """Return what the loader has done since it was made."""
        return self._tally.stats()

    def close(self) -> None:
        """End the session and the thread; twice is fine. Interpreter exit does it too."""
        if self._closed:
            return
        self._closed = True
        self._end_epoch()
        self._leave()
        PROCESS.free_number(self._job_argument, self._place(), self._number)

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._session is not None and not sys.is_finalizing():
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what cannot travel to another process; the copy opens a session of its own."""
        state = self.__dict__.copy()
        state.update(_session=None, _epoch=None)
        if self._ranks is not None:
            rank, world_size, _, dims = self._rank_arguments
            state["_rank_arguments"] = (rank, world_size, None, dims)
        return state

    def _check_open(self) -> None:
        if self._closed:
            raise MillraceError("the loader is closed")

    def _place(self) -> tuple[int, int] | None:
        """Give rank and peer as the caller named them."""
        rank = self._rank_arguments[0]
        return None if rank is None else (rank, self._peer_arguments[0] or 0)

    def _resolve(self) -> Ranks:
        rank, world_size, mesh, dims = self._rank_arguments
        if self._ranks is not None and mesh is not None:
            return self._ranks
        now = resolve_ranks(rank, world_size, mesh, dims, os.environ, *self._peer_arguments)
        if self._ranks is None:
            self._ranks = now
            self.batch_size = self._split()[0]
        elif _coordinates(now) != _coordinates(self._ranks) and not _in_worker():
            raise ConflictError(
                f"this loader was first used as {self._ranks}, and now it would be {now}: "
                "use it only after init_process_group, or make a new one"
            )
        return self._ranks

    def _split(self) -> tuple[int, int, int]:
        if self._ranks is None:
            return self._batching.split(self._resolve().world_size)
        return self._batching.split(self._ranks.world_size)

    def _ensure_session(self) -> Session:
        PROCESS.check_fork()
        if self._session is None:
            ranks = self._resolve()
            _, total, accumulation = self._split()
            settings = Settings(
                seed=self._seed,
                shuffle=self._shuffle,
                global_batch=total,
                accumulation=accumulation,
                tail=self._tail,
                on_error=self._on_error,
                max_bad=self._max_bad,
                max_bad_fraction=self._max_bad_fraction,
                prefetch=self._prefetch,
                epochs=self._epochs,
            )
            request = Request(
                job=self.job,
                recipe=self._recipe,
                settings=settings,
                ranks=ranks,
                cursor=self._cursor,
                continue_on_mismatch=self._continue_on_mismatch,
                attempt=attempt(os.environ),
                transport=self._transport,
            )
            endpoint = self._endpoint or os.environ.get("MILLRACE_ENDPOINT") or None
            self._session = Session(endpoint, request, os.environ, explicit_ranks=self._rank_arguments[0] is not None)
            steps = self._session.opened.steps
            self._clock.length = UNKNOWABLE if steps < 0 else steps * accumulation
        return self._session

    def _begin_at(self, session: Session) -> Position:
        """Decide where the next epoch begins: where the last one left off, unless something else was asked for."""
        where = self._next
        if where is None:
            where = session.opened.start
            if self._clock.loads_applied >= self._loads and self._clock.next_epoch > where.epoch:
                # Another process that shares the clock, a worker of an earlier epoch, was here before.
                where = Position(self._clock.next_epoch, 0, 0)
        asked = self._clock.asked
        if asked not in (_NEVER, where.epoch):
            where = Position(asked, 0, 0)
        return where

    def _begun(self, epoch: int) -> None:
        """Note that the first batch of an epoch is out."""
        self._clock.next_epoch = epoch + 1
        self._clock.loads_applied = self._loads
        self._clock.asked = _NEVER

    def _advance(self, epoch: Epoch) -> Batch | None:
        """Take the next batch of an epoch; None at its end."""
        PROCESS.check_fork()
        if epoch is not self._epoch:
            raise MillraceError("this iterator is over: the loader was closed, or began another epoch")
        asked = time.monotonic()
        try:
            item = epoch.stream.next(self._timeout)
        except MillraceError:
            epoch.broken = True
            raise
        except TimeoutError:
            self._stalled()
        if item is None:
            epoch.over = True
            epoch.stream.close()
            return None
        batch, header = item
        if epoch.returned == 0:
            self._begun(header.epoch)
        epoch.returned += 1
        if header.last_part:
            self._next = header.next
        self._cursor = batch.meta.cursor
        self._tally.count(header.valid_rows, asked, epoch.stream.waited)
        return batch

    def _end_epoch(self) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch is None:
            return
        if epoch.left_early:
            self._next = Position(epoch.number + 1, 0, 0)
        epoch.stream.close()
        if epoch.broken:
            self._leave()

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _pins(self) -> bool:
        if not self._pin_memory:
            return False
        from millrace._cuda import CUDA

        if not CUDA.available():
            self._pin_memory = False
            warnings.warn("pin_memory=True does nothing without torch and a GPU", UserWarning, stacklevel=3)
            return False
        return True

    def _gpu(self) -> Any:
        if self._device is None:
            return None
        from millrace._cuda import CUDA

        if not CUDA.available():
            raise MillraceError(f"device={self._device!r} needs a GPU, and torch imported before the first epoch")
        return sys.modules["torch"].device(self._device)

    def _stalled(self) -> NoReturn:
        session = self._session
        words = session.waiting() if session is not None else "the session is closed"
        raise StallError(f"rank {self.rank} got no batch in {self._timeout:g} s: {words}") from None


class Tally:
    """Counts what :class:`Stats` shows, at little cost for each batch."""

    __slots__ = ("batches", "first", "last", "rows", "wait_seconds", "waits")

    def __init__(self) -> None:
        self.batches = self.rows = self.waits = 0
        self.first = self.last = self.wait_seconds = 0.0

    def count(self, rows: int, asked: float, waited: bool) -> None:
        """Count a batch that was asked for at a time of the monotonic clock."""
        now = time.monotonic()
        if self.batches == 0:
            self.first = asked
        self.batches += 1
        self.rows += rows
        self.last = now
        if waited:
            self.waits += 1
            self.wait_seconds += now - asked

    def stats(self) -> Stats:
        """Return what was counted so far."""
        return Stats(self.batches, self.rows, self.waits, self.wait_seconds, self.last - self.first)


class Epoch:
    """How far one epoch of a loader has come. It does not refer to the loader, so nothing needs the cycle collector."""

    def __init__(self, stream: Stream | RingStream | DeviceStream, epoch: int) -> None:
        self.stream = stream
        self.number = epoch
        self.returned = 0
        self.over = False
        self.broken = False

    @property
    def left_early(self) -> bool:
        """Whether batches were taken but not all of them."""
        return self.returned > 0 and not self.over and not self.broken


class EpochIterator(Iterator[Any]):
    """One epoch of a loader."""

    def __init__(self, loader: DataLoader, epoch: Epoch) -> None:
        self._loader = loader
        self._epoch = epoch

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        if self._epoch.over:
            raise StopIteration
        batch = self._loader._advance(self._epoch)
        if batch is None:
            raise StopIteration
        collate = self._loader._collate_fn
        return batch if collate is None else collate(batch)


class EpochClock:
    """What was asked for and what has begun. A loader in worker processes shares one among them."""

    def __init__(self) -> None:
        self.asked = _NEVER
        self.next_epoch = 0
        self.loads_applied = 0
        self.length = NOT_YET_KNOWN


class EpochSetter:
    """What frameworks look for in ``loader.sampler``: a ``set_epoch``."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the loader's next ``iter()``.

        Parameters
        ----------
        epoch : int
            Counted from 0.
        """
        self._loader.set_epoch(epoch)


def _coordinates(ranks: Ranks) -> tuple[int, ...]:
    return ranks.rank, ranks.world_size, ranks.peer, ranks.peers


def _in_worker() -> bool:
    """Say whether this is a worker process of torch's DataLoader, where no process group is initialised."""
    data: Any = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
