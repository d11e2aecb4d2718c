"""Millrace keeps trainers fed: batches that are decoded, augmented and in one exact order, from a sidecar process.

>>> import millrace as mr
>>> recipe = mr.Recipe("train-{00..19}.tar").decode_image("image").random_resized_crop("image", size=224)
>>> loader = mr.DataLoader(recipe, batch_size=256, shuffle=True, seed=0)  # doctest: +SKIP
>>> for batch in loader:  # doctest: +SKIP
...     step(batch["image"], batch["label"])

Importing it is cheap: neither torch, numpy nor pyarrow is imported before they are needed.
"""

from __future__ import annotations

from millrace._batch import Batch, Meta
from millrace._operators import BatchContext, Context
from millrace.dataset import StreamingDataset
from millrace.errors import (
    BadDataError,
    CanceledError,
    ConflictError,
    ExhaustedError,
    InternalError,
    InvalidError,
    MillraceError,
    NotFoundError,
    StallError,
    UnavailableError,
)
from millrace.loader import DataLoader, Stats
from millrace.recipe import Recipe

__version__ = "0.1.0"

__all__ = [
    "BadDataError",
    "Batch",
    "BatchContext",
    "CanceledError",
    "ConflictError",
    "Context",
    "DataLoader",
    "ExhaustedError",
    "InternalError",
    "InvalidError",
    "Meta",
    "MillraceError",
    "NotFoundError",
    "Recipe",
    "StallError",
    "Stats",
    "StreamingDataset",
    "UnavailableError",
    "__version__",
]
