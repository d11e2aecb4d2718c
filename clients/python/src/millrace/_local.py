"""``millrace local``: the sidecar that a script brings along when no endpoint is given."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from millrace._launch import Host
from millrace.errors import MillraceError, UnavailableError

_START_SECONDS = 60.0
_IDLE_EXIT = "10s"
_STOP_SECONDS = 0.5
_SOCKET_PATH_LIMIT = 107


class LocalSidecar:
    """The local sidecar of this process, or the one that it shares with the other ranks of this host.

    Local rank 0 of a launcher starts it and the others wait for its socket. Since the ranks do not end at the same
    moment, a shared one is not bound to the process that started it: it ends when its last session has been gone for a
    while. One that belongs to a single process ends with that process, however it ends, because its standard input closes.

    Parameters
    ----------
    host : Host or None
        The launcher's view; None when this process is alone.
    env : mapping of str to str
        Environment to find the binary and the directory of sockets in.
    """

    def __init__(self, host: Host | None, env: Mapping[str, str]) -> None:
        self._env = dict(env)
        self._shared = host is not None and host.local_world_size > 1
        self._starts_it = host is None or host.local_rank == 0 or not self._shared
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._ready = False
        key = host.key if self._shared and host is not None else f"{os.getpid()}\0{os.urandom(8).hex()}"
        self.path = _socket_path(_socket_dir(env), key)

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"unix://{self.path}"

    def start(self) -> None:
        """Start it if that is up to this process and it is not running. Does not wait for it."""
        if not self._starts_it:
            return
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            self._ready = False
            self._close_files()
            command = [find_binary(self._env), "local", "--socket", self.path]
            command += ["--idle-exit", _IDLE_EXIT] if self._shared else ["--watch-stdin"]
            self._log = tempfile.TemporaryFile()
            environment = {**os.environ, **_python_settings(self._env)}
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL if self._shared else subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    env=environment,
                    # Ctrl-C is for the script, which may want to save its state. A launcher kills process groups.
                    start_new_session=not self._shared,
                )
            except OSError as error:
                raise MillraceError(f"cannot start {command[0]}: {error.strerror}") from error

    def wait(self) -> None:
        """Wait until it answers.

        Raises
        ------
        UnavailableError
            When it ends or does not answer in time. The text carries the last line of its log.
        """
        if not self._starts_it:
            self._wait_for_socket()
            return
        with self._lock:
            if self._ready or self._process is None:
                return
            line = self._first_line(self._process)
            try:
                self._ready = bool(json.loads(line)["ready"])
            except (ValueError, KeyError, TypeError):
                raise UnavailableError(f"millrace local did not start: {self._last_words(line)}") from None

    def fate(self) -> str:
        """Say how it ended, for the text of an error; empty while it runs."""
        process = self._process
        if process is None:
            return ""
        try:
            process.wait(_STOP_SECONDS)  # Its socket closes a moment before it has ended.
        except subprocess.TimeoutExpired:
            return ""
        return f"millrace local ended with exit code {process.returncode}: {self._last_words('')}"

    def stop(self) -> None:
        """Stop the one that belongs to this process, within a second. A shared one ends by itself."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._shared:
            self._close_files(process)
            # It outlives this process on purpose; a warning that a child was left would be wrong.
            process.returncode = process.poll() or 0
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        for signal in (process.terminate, process.kill):
            try:
                process.wait(_STOP_SECONDS)
                break
            except subprocess.TimeoutExpired:
                signal()
        process.wait()
        self._close_files(process)
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def leave_to_parent(self) -> None:
        """Let go of it in a forked child, whose copy of the pipe would keep it alive."""
        process = self._process
        if process is not None and process.stdin is not None:
            # Replaced rather than closed, so that closing the file object later hits no other file.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, process.stdin.fileno(), inheritable=False)
            os.close(null)
        self._starts_it = False

    def _close_files(self, process: subprocess.Popen[bytes] | None = None) -> None:
        process = process or self._process
        pipes = (process.stdout, process.stdin) if process is not None else ()
        for file in (self._log, *pipes):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        self._log = None

    def _first_line(self, process: subprocess.Popen[bytes]) -> str:
        if process.stdout is None:
            return ""
        line, deadline = b"", time.monotonic() + _START_SECONDS
        while not line.endswith(b"\n") and (left := deadline - time.monotonic()) > 0:
            if select.select([process.stdout], [], [], left)[0]:
                more = os.read(process.stdout.fileno(), 4096)
                if not more:
                    process.wait()
                    break
                line += more
        return line.decode(errors="replace")

    def _last_words(self, output: str) -> str:
        text = ""
        if self._log is not None:
            self._log.seek(0)
            text = self._log.read().decode(errors="replace")
        lines = (text.strip() or output.strip()).splitlines()
        return lines[-1] if lines else "it said nothing"

    def _wait_for_socket(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(self.path):
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"local rank 0 has started no sidecar at {self.endpoint} within {_START_SECONDS:.0f} s: "
                    "every rank of the host must use a loader, or set MILLRACE_ENDPOINT"
                )
            time.sleep(0.02)


def _python_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Let functions of this script run as they would here: by this interpreter, with the modules that the script sees."""
    settings = {} if "MILLRACE_ALLOW_PYTHON" in env else {"MILLRACE_ALLOW_PYTHON": "shipped"}
    if "MILLRACE_PYTHON_EXECUTABLE" not in env and sys.executable:
        own = tuple(os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix))  # which it finds itself
        path = [p or os.getcwd() for p in sys.path if not p.startswith(own)]
        settings |= {"MILLRACE_PYTHON_EXECUTABLE": sys.executable, "PYTHONPATH": os.pathsep.join(path)}
    return settings


def find_binary(env: Mapping[str, str]) -> str:
    """Find the ``millrace`` binary: MILLRACE_BIN, the one inside this package, PATH.

    Raises
    ------
    MillraceError
        When there is none.
    """
    chosen = env.get("MILLRACE_BIN")
    if chosen:
        if os.access(chosen, os.X_OK) and os.path.isfile(chosen):
            return chosen
        raise MillraceError(f"MILLRACE_BIN={chosen} is not an executable file")
    packaged = Path(__file__).parent / "_bin" / "millrace"
    if os.access(packaged, os.X_OK):
        return str(packaged)
    found = shutil.which("millrace", path=env.get("PATH"))
    if found:
        return found
    raise MillraceError(
        "there is no millrace binary in MILLRACE_BIN, in this package or on PATH to start a local sidecar with: "
        "install one, or set MILLRACE_ENDPOINT to a sidecar that runs"
    )


def _socket_dir(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    if len(base) > _SOCKET_PATH_LIMIT - 40:
        base = "/tmp"  # The path of a Unix socket has room for 107 bytes.
    directory = Path(base) / f"millrace-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    info = directory.lstat()
    if info.st_uid != os.getuid() or info.st_mode & 0o077 or not directory.is_dir() or directory.is_symlink():
        raise MillraceError(f"{directory} must be a directory of yours alone (mode 0700): remove it or set XDG_RUNTIME_DIR")
    return directory


def _socket_path(directory: Path, key: str) -> str:
    return str(directory / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.sock")


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
