"""Page-locked memory and copies to a GPU: every call of torch's that they take, in one place.

Tests put a stand-in for :class:`Cuda` here, since they have no GPU.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millrace._batch import Batch
from millrace._process import PROCESS
from millrace._stream import Item
from millrace.errors import MillraceError

if TYPE_CHECKING:
    from millrace._ring import Arena
    from millrace._ringstream import RingStream
    from millrace._stream import Stream

_PORTABLE = 1  # page-locked for all contexts of the process


class Cuda:
    """What is asked of CUDA, through torch."""

    def available(self) -> bool:
        """Say whether there is a GPU, and torch to use it."""
        torch: Any = sys.modules.get("torch")
        return torch is not None and bool(torch.cuda.is_available())

    def register(self, address: int, size: int) -> bool:
        """Lock memory in place; False where the system does not allow it."""
        return int(_torch().cuda.cudart().cudaHostRegister(address, size, _PORTABLE)) == 0

    def unregister(self, address: int) -> None:
        """Unlock what was locked, once nothing is copied from it any more."""
        _torch().cuda.synchronize()
        _torch().cuda.cudart().cudaHostUnregister(address)

    def pin(self, tensor: Any) -> Any:
        """Copy a tensor to page-locked memory, unless it lies in such."""
        return tensor.pin_memory()

    def mark(self) -> Any:
        """Make an event that happens when all that was asked of the current stream is done."""
        event = _torch().cuda.Event()
        event.record()
        return event

    def happened(self, event: Any) -> bool:
        """Say whether an event has happened."""
        return bool(event.query())

    def stream(self, device: Any) -> Any:
        """Make a stream of a device."""
        return _torch().cuda.Stream(device)

    def send(self, tensors: list[Any], device: Any, stream: Any) -> tuple[list[Any], Any]:
        """Begin to copy tensors to a device; the event happens when they are there."""
        torch = _torch()
        with torch.cuda.stream(stream):
            copies = [tensor.to(device, non_blocking=True) for tensor in tensors]
            event = torch.cuda.Event()
            event.record(stream)
        return copies, event

    def receive(self, copies: list[Any], device: Any, event: Any) -> None:
        """Let the current stream wait for copies, and have them belong to it."""
        current = _torch().cuda.current_stream(device)
        current.wait_event(event)
        for copy in copies:
            copy.record_stream(current)

    def finish(self, event: Any) -> None:
        """Wait for an event."""
        event.synchronize()


CUDA = Cuda()


def _torch() -> Any:
    return sys.modules["torch"]


class Pinning:
    """Locks the memory that a sidecar shares, and keeps its slots until copies out of them are done.

    A copy that a trainer begins with ``non_blocking=True`` goes on after the tensor is dropped. So a slot whose last
    tensor is gone goes back when all that the current stream was asked for by then is done.
    """

    def __init__(self) -> None:
        self._cuda = CUDA
        self._leaving: deque[tuple[Any, Callable[[], None]]] = deque()

    def lock(self, arena: Arena) -> None:
        """Lock the memory of an arena, once. Where that is not possible its batches are copied to memory that is locked."""
        if arena.read_only:
            return  # which only some GPUs can lock
        if not self._cuda.register(arena.address, arena.size):
            PROCESS.say_once(
                "pin_memory",
                f"{arena.size / 1e6:.0f} MB of shared memory cannot be page-locked (see ulimit -l): each batch is copied instead",
            )
            return
        arena.pinning = self
        weakref.finalize(arena, _unlock, self._cuda, arena.address).atexit = False

    def leave(self, give_back: Callable[[], None]) -> None:
        """Give a slot back when the copies out of it are done."""
        self._leaving.append((self._cuda.mark(), give_back))

    def sweep(self) -> bool:
        """Give back what can be; say whether something is left."""
        while self._leaving and self._cuda.happened(self._leaving[0][0]):
            self._leaving.popleft()[1]()
        return bool(self._leaving)


def _unlock(cuda: Cuda, address: int) -> None:
    if not PROCESS.forked:
        cuda.unregister(address)


class DeviceStream:
    """A stream whose batches are on a GPU: each is copied while the trainer works on the one before.

    Parameters
    ----------
    stream : Stream or RingStream
        Where batches come from.
    device : torch.device
        Where they go to.
    """

    def __init__(self, stream: Stream | RingStream, device: Any) -> None:
        self._stream = stream
        self._device = device
        self._side = CUDA.stream(device)
        self._ahead: Sent | MillraceError | None = None
        self._over = False
        self._sent: deque[Sent] = deque()
        self.waited = False
        """Whether the last :meth:`next` had to wait."""

    def next(self, timeout: float | None) -> Item | None:
        """Take the next batch, and begin to copy the one after it if that is there.

        Returns
        -------
        Item or None
            None at the end of the epoch.

        Raises
        ------
        TimeoutError
            When none came in time. The stream goes on.
        MillraceError
            What ended the stream.
        """
        while self._sent and CUDA.happened(self._sent[0].event):
            self._sent.popleft()
        self.waited = False
        if self._ahead is None and not self._over:
            self._fetch(timeout)
            self.waited = self._stream.waited
        now, self._ahead = self._ahead, None
        if isinstance(now, MillraceError):
            raise now
        if now is None:
            return None
        CUDA.receive(now.copies, self._device, now.event)
        if not self._over:
            try:
                self._fetch(0.0)
            except TimeoutError:
                pass
            except MillraceError as error:
                self._ahead = error  # after the batch that came before it
        return Item(now.batch, now.item.header)

    def close(self) -> None:
        """End the stream, when the copies that were begun are done; twice is fine."""
        self._stream.close()
        self._ahead, self._over = None, True
        while self._sent:
            CUDA.finish(self._sent.popleft().event)

    def _fetch(self, timeout: float | None) -> None:
        item = self._stream.next(timeout)
        if item is None:
            self._over = True
            return
        self._ahead = Sent(item, self._device, self._side)
        self._sent.append(self._ahead)


class Sent:
    """A batch on its way to a device. It keeps the memory that the batch comes from."""

    def __init__(self, item: Item, device: Any, side: Any) -> None:
        self.item = item
        tensors: list[Any] = []
        places = {name: _collect(value, tensors) for name, value in item.batch.items()}
        self.copies, self.event = CUDA.send(tensors, device, side)
        self.batch = Batch({name: _put(place, self.copies) for name, place in places.items()}, item.batch.meta)


def _collect(value: Any, tensors: list[Any]) -> Any:
    """Note the tensors of a field, and where they are: a place for a tensor, a list of places, or the value itself."""
    if isinstance(value, list) and value and isinstance(value[0], _torch().Tensor):
        return [_collect(each, tensors) for each in value]
    if isinstance(value, _torch().Tensor):
        tensors.append(value)
        return Place(len(tensors) - 1)
    return value


def _put(place: Any, copies: list[Any]) -> Any:
    if isinstance(place, list) and place and isinstance(place[0], Place):
        return [copies[each.index] for each in place]
    return copies[place.index] if isinstance(place, Place) else place


class Place:
    """Stands for a tensor."""

    def __init__(self, index: int) -> None:
        self.index = index
