"""Ed25519 signatures over typed payloads, by the keys of one PEM file.

Not HMAC: clients that submit jobs or verify bundles check signatures with public keys, and cannot make any. DSSE's
encoding (https://github.com/secure-systems-lab/dsse) is signed, which has the payload's type: a signature of one kind
of document is invalid for another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from codegen.contained_file import open_regular
from codegen.errors import ContainedFileError
from farm.errors import UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MAKE_KEY = "openssl genpkey -algorithm ed25519 -out keys.pem"
"""The command that makes a key."""
_MOST_BYTES = 2**16
_PEM = re.compile(rb"-----BEGIN (PRIVATE|PUBLIC) KEY-----\n.*?-----END \1 KEY-----\n?", re.DOTALL)


@dataclass(frozen=True)
class Signature:
    """A signature, and which key made it."""

    key_id: str
    data: bytes


@dataclass(frozen=True)
class Keyring:
    """The keys of a file: the first signs if it is private, signatures of all of them are valid."""

    path: Path
    trusted: Mapping[str, Ed25519PublicKey]
    """By id, in the order of the file."""
    signer: Ed25519PrivateKey | None

    def private(self) -> Ed25519PrivateKey:
        """The key that signs. Raises UsageError if the first key is public."""
        if self.signer is None:
            raise UsageError(
                f"{self.path} cannot sign results: its first key is public. Put the farm's private key first"
            )
        return self.signer

    def sign(self, kind: str, payload: bytes) -> Signature:
        """Signs a payload of that type. Raises UsageError without a private key."""
        return Signature(next(iter(self.trusted)), self.private().sign(_encoded(kind, payload)))

    def accepts(self, kind: str, payload: bytes, signature: Signature) -> bool:
        """Whether one of the keys made the signature, over this payload and type."""
        from cryptography.exceptions import InvalidSignature

        key = self.trusted.get(signature.key_id)
        if key is None:
            return False
        try:
            key.verify(signature.data, _encoded(kind, payload))
        except InvalidSignature:
            return False
        return True


def read_keyring(path: Path) -> Keyring:
    """Reads Ed25519 keys in PEM, private or public, one after another. Raises UsageError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

    trusted: dict[str, Ed25519PublicKey] = {}
    signers: list[Ed25519PrivateKey | None] = []
    try:
        with open_regular(path) as file:
            text = file.read(_MOST_BYTES)
        for match in _PEM.finditer(text):
            private = load_pem_private_key(match[0], None) if match[1] == b"PRIVATE" else None
            public = load_pem_public_key(match[0]) if private is None else private.public_key()
            if not isinstance(public, Ed25519PublicKey):
                raise UsageError(f"{path} holds a key that is not Ed25519: make one with {MAKE_KEY}")
            trusted[key_id(public)] = public
            signers.append(private if isinstance(private, Ed25519PrivateKey) else None)
    except (OSError, ContainedFileError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UsageError(f"signing keys {path} cannot be read: {reason}. Make one with {MAKE_KEY}") from None
    if not trusted:
        raise UsageError(f"{path} holds no key in PEM: make one with {MAKE_KEY}")
    return Keyring(path, trusted, signers[0])


def key_id(key: Ed25519PublicKey) -> str:
    """A key's short name: the first 16 hex digits of the digest of its bytes."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def _encoded(kind: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)
