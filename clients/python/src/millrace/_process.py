"""What belongs to the process as a whole: open sessions, the local sidecar, the end, and forks."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from millrace.errors import MillraceError

if TYPE_CHECKING:
    from millrace._local import LocalSidecar


class Closable(Protocol):
    """Something to close before the process ends."""

    def close(self) -> None:
        """Close it; twice is fine."""

    def leave_to_parent(self) -> None:
        """Let go of what would keep it alive in a forked child."""


class Process:
    """State that all loaders of this process share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._numbers: weakref.WeakValueDictionary[tuple[str, tuple[int, int] | None, int], Any] = weakref.WeakValueDictionary()
        self._warned: set[str] = set()
        self._connected_in: int | None = None
        self._kept_after_fork: list[Any] = []
        self.forked = False
        """Whether this process was forked from one that had connected."""
        self.local: LocalSidecar | None = None
        self.unique = f"run-{os.urandom(6).hex()}"

    def check_fork(self) -> None:
        """Refuse to go on in a process that was forked from one with connections: gRPC would hang.

        Raises
        ------
        MillraceError
            In such a child.
        """
        if self.forked:
            raise MillraceError(
                f"this process was forked from process {self._connected_in} after Millrace had connected there, and gRPC "
                "cannot be used across a fork: start it with multiprocessing_context='spawn' (or 'forkserver'), "
                "or fork before the first use of a loader"
            )

    def connecting(self, session: Closable) -> None:
        """Note that a session is about to connect, and close it when the process ends.

        Parameters
        ----------
        session : Closable
            Held weakly.
        """
        self.check_fork()
        with self._lock:
            if self._connected_in is None:
                self._connected_in = os.getpid()
                atexit.register(self._end)
                multiprocessing = sys.modules.get("multiprocessing.util")
                if multiprocessing is not None:
                    # Worker processes of multiprocessing leave without atexit.
                    multiprocessing.Finalize(None, self._end, exitpriority=100)
                os.register_at_fork(after_in_child=self._forked)
            self._open.add(session)

    def number(self, loader: Any, job: str, rank: tuple[int, int] | None) -> int:
        """Give a loader the lowest number that no other living loader of the same job name and rank has.

        Parameters
        ----------
        loader : object
            Held weakly.
        job : str
            Name as the user gave it, or empty.
        rank : tuple of int or None
            Rank and peer as the user gave them.
        """
        with self._lock:
            number = 0
            while (job, rank, number) in self._numbers:
                number += 1
            self._numbers[job, rank, number] = loader
            return number

    def free_number(self, job: str, rank: tuple[int, int] | None, number: int) -> None:
        """Take a number back, as a closed loader does."""
        with self._lock:
            self._numbers.pop((job, rank, number), None)

    def local_sidecar(self, make: Callable[[], LocalSidecar]) -> LocalSidecar:
        """Return the local sidecar of this process, made on first use.

        Parameters
        ----------
        make : callable
            Makes it, without starting it.
        """
        with self._lock:
            if self.local is None:
                self.local = make()
            return self.local

    def warn_once(self, option: str, text: str, stacklevel: int) -> None:
        """Warn about an option, once in the life of the process."""
        if option not in self._warned:
            self._warned.add(option)
            warnings.warn(text, UserWarning, stacklevel=stacklevel + 1)

    def say_once(self, topic: str, text: str) -> None:
        """Log a warning, once in the life of the process."""
        if topic not in self._warned:
            self._warned.add(topic)
            logging.getLogger("millrace").warning(text)

    def _end(self) -> None:
        if self.forked:
            return
        for session in list(self._open):
            with contextlib.suppress(MillraceError):
                session.close()
        if self.local is not None:
            self.local.stop()

    def _forked(self) -> None:
        self.forked = True
        # Nothing of the parent's gRPC may run here, not even a destructor: keep all of it, for good.
        self._kept_after_fork.extend(self._open)
        for session in self._open:
            session.leave_to_parent()
        if self.local is not None:
            self.local.leave_to_parent()


PROCESS = Process()
"""The one of this process."""
