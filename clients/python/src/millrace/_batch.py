"""A batch: a plain dict of model fields, with the rest in ``meta``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Batch", "Meta"]


class Meta:
    """Where a batch comes from. Everything that needs work is made when it is first looked at.

    Attributes
    ----------
    epoch, step : int
        Which global batch of the job this is part of; both count from 0.
    part : int
        Which part of the global batch, when gradients are accumulated over several; from 0.
    rows, valid_rows : int
        Rows of this batch, and how many of them are not padding.
    cursor : str
        State of the loader after this batch: what ``state_dict(after=batch)`` returns. For a part that does not
        complete its global batch it is the state before that global batch.
    """

    __slots__ = ("_keys", "_samples", "_tensor", "_valid", "cursor", "epoch", "part", "rows", "step", "valid_rows")

    def __init__(
        self,
        *,
        epoch: int,
        step: int,
        part: int,
        rows: int,
        valid_rows: int,
        cursor: str,
        keys: Any,
        samples: Any,
        valid: Any,
        tensor: Callable[[Any, str], Any],
    ) -> None:
        self.epoch = epoch
        self.step = step
        self.part = part
        self.rows = rows
        self.valid_rows = valid_rows
        self.cursor = cursor
        self._keys = keys
        self._samples = samples
        self._valid = valid
        self._tensor = tensor

    @property
    def keys(self) -> list[str]:
        """Key of each row's sample: shard and member."""
        if not isinstance(self._keys, list):
            self._keys = self._keys.to_pylist()
        keys: list[str] = self._keys
        return keys

    @property
    def samples(self) -> Any:
        """Number of each row's sample in the manifest, int64."""
        return self._tensor(self._samples, "int64")

    @property
    def valid(self) -> Any:
        """Mask, bool: False where a row only fills the batch and must not be counted."""
        return self._tensor(self._valid, "bool")

    def __repr__(self) -> str:
        part = f", part={self.part}" if self.part else ""
        return f"Meta(epoch={self.epoch}, step={self.step}{part}, rows={self.rows}, valid_rows={self.valid_rows})"


class Batch(dict[str, Any]):
    """A dict of model fields, so that ``model(**batch)`` works, with :class:`Meta` as the attribute ``meta``.

    The tensors are the caller's: writable, in memory of their own, and free to be kept. A copy that some library
    makes through the plain constructor has ``meta`` None.
    """

    meta: Meta

    def __init__(self, fields: Any = (), meta: Meta | None = None) -> None:
        super().__init__(fields)
        self.meta = meta  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Batch({super().__repr__()}, {self.meta!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Batch, (dict(self), self.meta))
