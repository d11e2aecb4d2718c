from __future__ import annotations

import pytest

from millrace._tls import encrypted
from millrace.errors import InvalidError


@pytest.mark.parametrize("location", ["grpc+unix:///run/s.sock", "grpc+tcp://host:1"])
def test_nothing_is_encrypted_without_being_asked(location):
    assert encrypted(location, {}) == (location, {})


def test_a_socket_is_never_encrypted(tmp_path):
    assert encrypted("grpc+unix:///run/s.sock", {"MILLRACE_TLS_CA": str(tmp_path / "none")}) == ("grpc+unix:///run/s.sock", {})


def test_a_scheme_asks_for_encryption():
    assert encrypted("grpc+tls://host:1", {}) == ("grpc+tls://host:1", {})


def test_the_environment_asks_for_encryption(tmp_path):
    (tmp_path / "ca").write_bytes(b"authority")
    (tmp_path / "cert").write_bytes(b"certificate")
    (tmp_path / "key").write_bytes(b"key")
    env = {"MILLRACE_TLS_CA": str(tmp_path / "ca")}
    assert encrypted("grpc+tcp://host:1", env) == ("grpc+tls://host:1", {"tls_root_certs": b"authority"})
    env |= {"MILLRACE_TLS_CERT": str(tmp_path / "cert"), "MILLRACE_TLS_KEY": str(tmp_path / "key")}
    env["MILLRACE_TLS_NAME"] = "sidecar"
    assert encrypted("grpc+tls://host:1", env) == (
        "grpc+tls://host:1",
        {"tls_root_certs": b"authority", "cert_chain": b"certificate", "private_key": b"key", "override_hostname": "sidecar"},
    )


def test_files_that_are_missing_are_named(tmp_path):
    with pytest.raises(InvalidError, match=r"MILLRACE_TLS_CA=.*/none: No such file or directory"):
        encrypted("grpc+tcp://host:1", {"MILLRACE_TLS_CA": str(tmp_path / "none")})
    with pytest.raises(InvalidError, match="belong together"):
        encrypted("grpc+tcp://host:1", {"MILLRACE_TLS_CERT": str(tmp_path / "none")})
