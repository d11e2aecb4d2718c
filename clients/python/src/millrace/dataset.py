"""The same stream as a dataset of torch's, for those who keep their own torch ``DataLoader``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from millrace.errors import MillraceError
from millrace.loader import NOT_YET_KNOWN, DataLoader, EpochClock

__all__ = ["StreamingDataset"]


class StreamingDataset:
    """A ``torch.utils.data.IterableDataset`` of ready batches: ``torch.utils.data.DataLoader(dataset, batch_size=None)``.

    One iteration is one epoch. Batches are read ahead by a thread, so ``num_workers=0`` is right. One worker process
    works too; more would each get all of the rank's batches, so they raise.

    The state counts what this process has been handed. With a worker process, or a loop that reads ahead, save
    ``state_dict(after=batch)``: the state travels in the batch.

    Parameters
    ----------
    source : Recipe, str or sequence of str
        As for :class:`millrace.DataLoader`.
    batch_size : int, optional
        Rows of one batch of one rank.
    **options
        All other options of :class:`millrace.DataLoader`.
    """

    def __new__(cls, *args: Any, **options: Any) -> StreamingDataset:  # noqa: ARG004
        """Make an instance that torch recognises, if torch is there."""
        return object.__new__(_torch_class() if cls is StreamingDataset else cls)

    def __init__(self, source: Any, batch_size: int | None = None, **options: Any) -> None:
        self._loader = DataLoader(source, batch_size, **options)
        if isinstance(self, _iterable_dataset()):
            self._loader._clock = _SharedClock()

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch.

        Raises
        ------
        MillraceError
            In a worker process that is not the only one.
        """
        data: Any = sys.modules.get("torch.utils.data")
        worker = data.get_worker_info() if data is not None else None
        if worker is not None and worker.num_workers > 1:
            raise MillraceError(
                f"torch's DataLoader runs {worker.num_workers} worker processes over a millrace.StreamingDataset, and each "
                "would get all batches of this rank: use num_workers=0 (batches are read ahead anyway), or 1"
            )
        return iter(self._loader)

    def __len__(self) -> int:
        """Batches of one rank in an epoch, once an epoch has begun in any process.

        It does not connect, as ``len(millrace.DataLoader)`` does: ``list``, ``tqdm`` and others ask for a length by the way,
        and worker processes could not be forked from a process that has connected.

        Raises
        ------
        TypeError
            Before that, or when nobody can know.
        """
        length = self._loader._clock.length
        if length == NOT_YET_KNOWN:
            raise TypeError(
                "the length of this dataset is not known before its first batch; millrace.DataLoader knows it at once"
            )
        if length < 0:
            return len(self._loader)
        return length

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration.

        Parameters
        ----------
        epoch : int
            Counted from 0.
        """
        self._loader.set_epoch(epoch)

    def state_dict(self, after: Any = None) -> dict[str, str]:
        """Return where the dataset is, as :meth:`millrace.DataLoader.state_dict` does.

        Parameters
        ----------
        after : Batch, optional
            A batch to return the state after.
        """
        return self._loader.state_dict(after)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where a state was taken, at the next iteration.

        Parameters
        ----------
        state_dict : mapping
            What :meth:`state_dict` returned.
        """
        self._loader.load_state_dict(state_dict)

    def close(self) -> None:
        """End the session; twice is fine."""
        self._loader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self._loader,))


def _rebuild(loader: DataLoader) -> StreamingDataset:
    dataset = object.__new__(_torch_class())
    dataset._loader = loader
    return dataset


def _iterable_dataset() -> Any:
    try:
        from torch.utils.data import IterableDataset
    except ImportError:
        return ()
    return IterableDataset


_classes: dict[str, type[StreamingDataset]] = {}


def _torch_class() -> type[StreamingDataset]:
    """Return the class that is torch's too; made on first use, since only its user needs torch."""
    base = _iterable_dataset()
    if base == ():
        return StreamingDataset
    if "torch" not in _classes:
        _classes["torch"] = type("StreamingDataset", (StreamingDataset, base), {"__doc__": StreamingDataset.__doc__})
    return _classes["torch"]


class _SharedClock(EpochClock):
    """A clock in shared memory: a worker process gets a copy of the dataset for each epoch, but all read one clock."""

    def __init__(self) -> None:
        import torch

        self._values = torch.tensor([-1, 0, 0, NOT_YET_KNOWN], dtype=torch.int64).share_memory_()

    @property
    def asked(self) -> int:
        """Epoch that ``set_epoch`` named, or -1."""
        return int(self._values[0])

    @asked.setter
    def asked(self, value: int) -> None:
        self._values[0] = value

    @property
    def next_epoch(self) -> int:
        """Epoch after the last one that has begun."""
        return int(self._values[1])

    @next_epoch.setter
    def next_epoch(self, value: int) -> None:
        self._values[1] = value

    @property
    def loads_applied(self) -> int:
        """How many calls of ``load_state_dict`` have had their effect."""
        return int(self._values[2])

    @loads_applied.setter
    def loads_applied(self, value: int) -> None:
        self._values[2] = value

    @property
    def length(self) -> int:
        """Batches of one rank in an epoch, or why there is no such number."""
        return int(self._values[3])

    @length.setter
    def length(self, value: int) -> None:
        self._values[3] = value
