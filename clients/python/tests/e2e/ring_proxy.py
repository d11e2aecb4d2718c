"""A Unix socket between trainers and the ring socket of a sidecar, which tells of each message before and after it passes."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

RELEASE, COMMIT, SHARE, READY = "RELEASE", "COMMIT", "SHARE", "READY"
_KINDS = {1: "BEGIN", 2: RELEASE, 3: COMMIT, 16: "WELCOME", 17: SHARE, 18: READY, 19: "END"}
_INLINE = 0xFFFFFFFF


class Proxy:
    """Takes connections at one path and passes them on to another, message by message.

    Parameters
    ----------
    path, behind : str
        Where it listens, and where the sidecar does.
    told : callable
        Called with the name of a message and whether it has passed.
    """

    def __init__(self, path: str, behind: str, told: Callable[[str, bool], None]) -> None:
        self._behind = behind
        self._told = told
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def close(self) -> None:
        """End all connections and threads."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _run(self, target: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                trainer, _ = self._listener.accept()
            except OSError:
                return
            sidecar = socket.socket(socket.AF_UNIX)
            self._sockets += [trainer, sidecar]
            try:
                sidecar.connect(self._behind)
            except OSError:
                trainer.shutdown(socket.SHUT_RDWR)
                continue
            self._run(self._pass, trainer, sidecar, 32, 64)
            self._run(self._pass, sidecar, trainer, 64, 0)

    def _pass(self, source: socket.socket, target: socket.socket, size: int, greeting: int) -> None:
        pending, fds, due = b"", [], greeting  # due: bytes that follow a message and are not one
        with contextlib.suppress(OSError):
            while True:
                data, more, _, _ = socket.recv_fds(source, 1 << 16, 4)
                if not data:
                    break
                pending, fds = pending + data, fds + list(more)
                while pending:
                    if due:
                        target.sendall(pending[:due])
                        pending, due = pending[due:], max(0, due - len(pending))
                        continue
                    if len(pending) < size:
                        break
                    message, pending = pending[:size], pending[size:]
                    due = _follows(message)
                    kind = _KINDS[message[0]]
                    self._told(kind, False)
                    if kind == SHARE:
                        socket.send_fds(target, [message], fds)
                        while fds:
                            os.close(fds.pop())
                    else:
                        target.sendall(message)
                    self._told(kind, True)
        for fd in fds:
            os.close(fd)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _follows(message: bytes) -> int:
    kind = _KINDS[message[0]]
    if kind in ("WELCOME", "END"):
        return int(struct.unpack_from("<I", message, 4)[0])
    if kind == READY and struct.unpack_from("<I", message, 4)[0] == _INLINE:
        return int(struct.unpack_from("<Q", message, 40)[0])
    return 0


def in_front_of(socket_path: Path, told: Callable[[str, bool], None]) -> tuple[Proxy, str]:
    """Put a proxy before the ring of a sidecar; the endpoint that is returned leads to its Flight socket and to the proxy."""
    front = socket_path.with_suffix(".front")
    front.symlink_to(socket_path)
    return Proxy(f"{front}.ring", f"{socket_path}.ring", told), f"unix://{front}"
