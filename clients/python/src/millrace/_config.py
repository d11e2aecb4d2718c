"""Options of a loader: checked once, when it is made, in the caller's words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace._process import PROCESS
from millrace.errors import InvalidError
from millrace.recipe import Recipe

_SHUFFLES = {True: "block", False: "none", None: "none", "block": "block", "full": "full", "none": "none"}
_TAILS = ("pad", "drop", "short")
_TRANSPORTS = ("auto", "ring", "flight")
_MISMATCHES = ("error", "continue")

_IGNORED = {
    "num_workers": "samples are read and decoded outside the trainer, so there are no worker processes",
    "persistent_workers": "there are no worker processes",
    "multiprocessing_context": "there are no worker processes",
    "worker_init_fn": "there are no worker processes",
    "prefetch_factor": "it counts per worker process; prefetch_batches= says how many batches are read ahead",
    "generator": "the order follows from seed= alone",
    "sampler": "the order follows from shuffle= and seed=, and each rank gets its own rows by itself",
}


@dataclass(frozen=True)
class Batching:
    """Rows of a rank's batch and of an optimizer step, as far as they were given."""

    batch_size: int | None
    global_batch_size: int | None

    def split(self, world_size: int) -> tuple[int, int, int]:
        """Return a rank's rows in a batch, rows of an optimizer step, and batches that it is accumulated from.

        Raises
        ------
        InvalidError
            When the optimizer step cannot be cut evenly.
        """
        if self.global_batch_size is None:
            rows = self.batch_size or 0
            return rows, rows * world_size, 1
        total = self.global_batch_size
        if total % world_size:
            raise InvalidError(
                f"global_batch_size={total} cannot be cut evenly among {world_size} ranks: make it a multiple of {world_size}"
            )
        if self.batch_size is None:
            return total // world_size, total, 1
        together = self.batch_size * world_size
        if total % together:
            raise InvalidError(
                f"global_batch_size={total} is no multiple of batch_size={self.batch_size} × {world_size} ranks = {together}: "
                "gradients cannot be accumulated over a whole number of batches"
            )
        return self.batch_size, total, total // together


def choose(name: str, value: Any, allowed: Any) -> Any:
    """Check an option that is one of a few words."""
    if isinstance(value, str | bool | None) and value in allowed:
        return allowed[value] if isinstance(allowed, Mapping) else value
    words = ", ".join(repr(word) for word in allowed if word is not None)
    raise InvalidError(f"{name}={value!r} is none of {words}")


def count(name: str, value: Any, least: int, most: int = 2**53) -> int:
    """Check an option that is a whole number."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidError(f"{name}={value!r} is not a whole number")
    number = value.__index__()
    if number < least:
        raise InvalidError(f"{name}={number} must be at least {least}")
    if number > most:
        raise InvalidError(f"{name}={number} must be at most {most}")
    return int(number)


def optional_count(name: str, value: Any, least: int) -> int | None:
    """Check an option that is a whole number or None."""
    return None if value is None else count(name, value, least)


def optional_fraction(name: str, value: Any) -> float | None:
    """Check an option that is above 0 and at most 1, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise InvalidError(f"{name}={value!r} must be above 0 and at most 1")
    return float(value)


def shuffle_word(shuffle: Any) -> str:
    """Name the shuffle that ``shuffle=`` means."""
    return str(choose("shuffle", shuffle, _SHUFFLES))


def tail_word(tail: str | None, drop_last: bool | None) -> str:
    """Name the tail that ``tail=`` and torch's ``drop_last=`` mean together."""
    if tail is None:
        return "drop" if drop_last else "pad"
    choose("tail", tail, _TAILS)
    if drop_last is not None and drop_last != (tail == "drop"):
        raise InvalidError(f"drop_last={drop_last} contradicts tail={tail!r}: leave drop_last out")
    return tail


def continues_on_mismatch(on_mismatch: str | None) -> bool:
    """Say whether a state of another recipe is accepted: the argument, else MILLRACE_ON_MISMATCH, else not."""
    if on_mismatch is None:
        value = os.environ.get("MILLRACE_ON_MISMATCH") or "error"
        return bool(choose("MILLRACE_ON_MISMATCH", value, _MISMATCHES) == "continue")
    return bool(choose("on_mismatch", on_mismatch, _MISMATCHES) == "continue")


def transport_word(transport: str | None) -> str:
    """Name the way that batches come: the argument, else MILLRACE_TRANSPORT, else "auto"."""
    if transport is None:
        return str(choose("MILLRACE_TRANSPORT", os.environ.get("MILLRACE_TRANSPORT") or "auto", _TRANSPORTS))
    return str(choose("transport", transport, _TRANSPORTS))


def pinned_device(pin_memory_device: Any) -> None:
    """Check ``pin_memory_device=``: memory is page-locked for all GPUs of CUDA, and for no other device."""
    if not isinstance(pin_memory_device, str) or pin_memory_device.partition(":")[0] not in ("", "cuda"):
        raise InvalidError(f"pin_memory_device={pin_memory_device!r}: memory can be page-locked for CUDA alone")


def device_name(device: Any) -> str | None:
    """Name the GPU of ``device=``; None means that batches stay in memory."""
    if device is None or str(device) == "cpu":
        return None
    name = f"cuda:{device}" if isinstance(device, int) and not isinstance(device, bool) else str(device)
    kind, _, number = name.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise InvalidError(f"device={device!r} is neither 'cpu' nor a GPU of CUDA such as 'cuda' or 'cuda:1'")
    return name


def batching(batch_size: Any, global_batch_size: Any) -> Batching:
    """Check ``batch_size=`` and ``global_batch_size=``."""
    if batch_size is None and global_batch_size is None:
        raise InvalidError("batch_size is missing: give the rows of one rank's batch, or global_batch_size")
    return Batching(optional_count("batch_size", batch_size, 1), optional_count("global_batch_size", global_batch_size, 1))


def timeout_seconds(timeout: Any) -> float | None:
    """Check ``timeout=``; 0 and None mean no limit, as in torch."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < float("inf"):
        raise InvalidError(f"timeout={timeout!r} is not a number of seconds; 0 means no limit")
    return float(timeout) or None


def recipe_text(source: Any) -> tuple[Any, str]:
    """Return what ``loader.dataset`` shows, and the text that is sent: a recipe file's as it is, else a recipe's."""
    if isinstance(source, Recipe):
        return source, source._sent()
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, str) and source.lower().endswith((".yaml", ".yml")):
        try:
            with open(source, encoding="utf-8") as file:
                return source, file.read()
        except OSError as error:
            raise InvalidError(f"recipe {source}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidError(f"recipe {source} is not UTF-8 text: {error}") from error
    recipe = Recipe(source)
    return recipe, recipe.to_json()


def warn_of_ignored(options: Mapping[str, Any], stacklevel: int) -> None:
    """Warn, once in the process for each, of options of torch's that are accepted but do nothing here."""
    for name, value in options.items():
        if value is not None and value is not False and not (name == "num_workers" and value == 0):
            PROCESS.warn_once(name, f"millrace.DataLoader ignores {name}={value!r}: {_IGNORED[name]}", stacklevel + 1)
