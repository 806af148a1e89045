"""Keys in PEM sign typed payloads; public keys check and cannot sign."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from farm.errors import UsageError
from farm.signing import MAKE_KEY, Keyring, read_keyring
from tests.signing_keys import new_key

KIND = "application/a+json"


def keyring(path: Path, *keys: bytes) -> Keyring:
    path.write_bytes(b"".join(keys))
    return read_keyring(path)


def test_a_signature_is_valid_for_its_payload_and_its_type_only(tmp_path: Path) -> None:
    private, public = new_key()
    signature = keyring(tmp_path / "private", private).sign(KIND, b"payload")
    readers = keyring(tmp_path / "public", public)
    assert readers.accepts(KIND, b"payload", signature)
    assert not readers.accepts(KIND, b"payloae", signature)
    assert not readers.accepts("application/b+json", b"payload", signature)
    assert not readers.accepts(KIND, b"payload", replace(signature, data=b"\0" * 64))
    assert not readers.accepts(KIND, b"payload", replace(signature, data=b""))
    assert not keyring(tmp_path / "other", new_key()[1]).accepts(KIND, b"payload", signature)


def test_the_first_key_signs_and_every_key_of_the_file_is_accepted(tmp_path: Path) -> None:
    (old, old_public), (new, new_public) = new_key(), new_key()
    before = keyring(tmp_path / "before", old).sign(KIND, b"p")
    rotated = keyring(tmp_path / "rotated", new, old_public)
    after = rotated.sign(KIND, b"p")
    assert rotated.accepts(KIND, b"p", before)
    assert rotated.accepts(KIND, b"p", after)
    assert keyring(tmp_path / "new", new_public).accepts(KIND, b"p", after)
    assert not keyring(tmp_path / "new", new_public).accepts(KIND, b"p", before)


def test_a_file_whose_first_key_is_public_cannot_sign(tmp_path: Path) -> None:
    readers = keyring(tmp_path / "keys", new_key()[1], new_key()[0])
    with pytest.raises(UsageError, match="cannot sign results: its first key is public"):
        readers.sign(KIND, b"payload")


OTHER_KIND = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "holds no key in PEM"),
        (b"a key\n", "holds no key in PEM"),
        (OTHER_KIND, "holds a key that is not Ed25519"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "cannot be read"),
        (new_key()[0].replace(b"M", b"\xff", 1), "cannot be read"),
    ],
    ids=["empty", "no-key", "other-kind", "damaged", "not-text"],
)
def test_a_file_without_usable_keys_is_one_error_with_the_way_out(tmp_path: Path, text: bytes, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        keyring(tmp_path / "keys", text)
    assert MAKE_KEY in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_pipe_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe"):
        with pytest.raises(UsageError, match=r"cannot be read: (No such file|it is not a regular file)"):
            read_keyring(tmp_path / name)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_command_that_is_recommended_makes_a_key(tmp_path: Path) -> None:
    subprocess.run(MAKE_KEY.split(), cwd=tmp_path, check=True, capture_output=True)
    keys = read_keyring(tmp_path / "keys.pem")
    assert keys.accepts(KIND, b"p", keys.sign(KIND, b"p"))
