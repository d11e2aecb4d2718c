"""Encrypted connections to a sidecar on another host, set as those of the roles are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from millrace.errors import InvalidError

_PLAIN = "grpc+tcp://"
_ENCRYPTED = "grpc+tls://"


def encrypted(location: str, env: Mapping[str, str]) -> tuple[str, dict[str, bytes | str]]:
    """Say how pyarrow connects to a location: encrypted when its scheme or the environment asks for that.

    Parameters
    ----------
    location : str
        Where the sidecar is, as pyarrow writes it.
    env : mapping
        MILLRACE_TLS_CA, MILLRACE_TLS_CERT, MILLRACE_TLS_KEY and MILLRACE_TLS_NAME count, as the flags of the roles.

    Returns
    -------
    location : str
        The same, or that of an encrypted connection.
    options : dict
        More arguments for ``pyarrow.flight.FlightClient``.

    Raises
    ------
    InvalidError
        When a file of a certificate cannot be read, or only one of certificate and key is given.
    """
    names = {
        "tls_root_certs": "MILLRACE_TLS_CA",
        "cert_chain": "MILLRACE_TLS_CERT",
        "private_key": "MILLRACE_TLS_KEY",
    }
    files = {option: env[name] for option, name in names.items() if env.get(name)}
    server = env.get("MILLRACE_TLS_NAME", "")
    if not location.startswith((_PLAIN, _ENCRYPTED)) or (location.startswith(_PLAIN) and not files and not server):
        return location, {}
    if ("cert_chain" in files) != ("private_key" in files):
        raise InvalidError("MILLRACE_TLS_CERT and MILLRACE_TLS_KEY belong together; set both")
    options: dict[str, bytes | str] = {}
    for option, path in files.items():
        try:
            options[option] = Path(path).read_bytes()
        except OSError as error:
            raise InvalidError(f"{names[option]}={path}: {error.strerror}") from None
    if server:
        options["override_hostname"] = server
    return _ENCRYPTED + location.removeprefix(_PLAIN).removeprefix(_ENCRYPTED), options
