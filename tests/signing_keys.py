"""Signing keys for tests: one private key for each file, or its public half."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)


def new_key() -> tuple[bytes, bytes]:
    """A private key and its public one, in PEM."""
    private = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, public_half(private)


def public_half(private: bytes) -> bytes:
    """The public key of a private one, in PEM."""
    key = load_pem_private_key(private, None)
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def key_file(path: Path) -> Path:
    """Writes a new private key, unless the file exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(new_key()[0])
    return path
