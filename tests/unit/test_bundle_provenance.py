"""The in-toto statement of a bundle names its files, and what they were made from; a signature binds all of them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from farm.bundle.manifest import with_digest
from farm.bundle.provenance import PAYLOAD_TYPE
from farm.bundle.reader import PROVENANCE, Bundle
from farm.bundle.writer import write_bundle
from farm.signing import Keyring, read_keyring
from farm.store.contract import blob_digest
from tests.bundle_samples import JOB, TOOLS, build, contents, manifest_of, result, stored_cubins, validator
from tests.signing_keys import key_file, new_key


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return read_keyring(key_file(tmp_path / "keys.pem"))


def written(path: Path, keys: Keyring | None = None) -> Path:
    results = [result(number, arch) for number in (0, 1) for arch in ("sm_80", "sm_90")]
    verification = [{"layer": "conv1", "archs": ["sm_90"], "on": "machine code"}] if keys else []
    builds = [build(0, "conv1"), build(1, "conv2")]
    write_bundle(path, JOB, builds, results, TOOLS, stored_cubins(), keys=keys, verification=verification)
    return path


def change(bundle: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edits the manifest and makes all its digests match again."""
    manifest = manifest_of(bundle)
    del manifest["sha256"]
    edit(manifest)
    (bundle / "manifest.json").write_bytes(with_digest(manifest))


def replace_provenance(bundle: Path, data: bytes) -> None:
    (bundle / PROVENANCE).write_bytes(data)
    change(bundle, lambda manifest: manifest["provenance"].update(sha256=blob_digest(data), bytes=len(data)))


def test_the_statement_has_every_file_but_the_manifest_and_what_they_were_made_from(tmp_path: Path) -> None:
    bundle = written(tmp_path / "bundle")
    found, manifest = contents(bundle), manifest_of(bundle)
    validator().validate(manifest)
    statement = json.loads(found.pop(PROVENANCE))
    del found["manifest.json"]
    assert (statement["_type"], statement["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert {each["name"]: each["digest"]["sha256"] for each in statement["subject"]} == {
        name: blob_digest(data) for name, data in found.items()
    }
    definition, details = (statement["predicate"][name] for name in ("buildDefinition", "runDetails"))
    materials = [(each["name"], each["digest"]) for each in definition["resolvedDependencies"]]
    assert ("net.onnx", {"farm_model": JOB.model_digest}) in materials
    assert ("weights of conv2", {"sha256": "ab" * 32}) in materials
    assert ("template", {"farm_template_key": result(1, "sm_90").template_key}) in materials
    assert TOOLS.items() <= details["builder"]["version"].items()
    assert "private" not in json.dumps(statement)  # the folder of the model
    assert "farm_verification" not in details


def test_a_signed_bundle_holds_and_an_unsigned_one_says_how_to_get_it_signed(tmp_path: Path, keys: Keyring) -> None:
    for name in ("bundle", "bundle.farm"):
        assert Bundle(written(tmp_path / name, keys)).damage(keys) == []
    envelope = json.loads((tmp_path / "bundle" / PROVENANCE).read_text())
    details = json.loads(b64decode(envelope["payload"]))["predicate"]["runDetails"]
    assert details["farm_verification"] == [{"layer": "conv1", "archs": ["sm_90"], "on": "machine code"}]
    [told] = Bundle(written(tmp_path / "unsigned")).damage(keys)
    assert "it is not signed" in told
    assert "--sign" in told


def test_another_key_is_refused(tmp_path: Path, keys: Keyring) -> None:
    bundle = written(tmp_path / "bundle", keys)
    other = tmp_path / "other.pem"
    other.write_bytes(new_key()[1])
    assert run(["bundle", "verify", str(bundle), "--key", str(other)]) == 39
    assert run(["bundle", "verify", str(bundle), "--key", str(tmp_path / "keys.pem")]) == 0


def test_a_cubin_that_was_replaced_with_all_its_digests_is_named(tmp_path: Path, keys: Keyring) -> None:
    bundle = written(tmp_path / "bundle", keys)
    data = (bundle / "conv2" / "sm_80.cubin").read_bytes()
    (bundle / "conv1" / "sm_80.cubin").write_bytes(data)

    def edit(manifest: dict[str, Any]) -> None:
        manifest["layers"][0]["launches"][0]["cubins"]["sm_80"].update(sha256=blob_digest(data), bytes=len(data))

    change(bundle, edit)
    assert Bundle(bundle).damage() == []
    [told] = Bundle(bundle).damage(keys)
    assert "its signature is for another conv1/sm_80.cubin" in told


def test_a_manifest_with_other_launches_is_refused(tmp_path: Path, keys: Keyring) -> None:
    bundle = written(tmp_path / "bundle", keys)
    change(bundle, lambda manifest: manifest["layers"][0]["launches"][0].update(shared_bytes=4096))
    [told] = Bundle(bundle).damage(keys)
    assert "its signature is for another manifest" in told


def test_an_envelope_of_anything_else_is_one_message(tmp_path: Path, keys: Keyring) -> None:
    bundle = written(tmp_path / "bundle", keys)
    whole = json.loads((bundle / PROVENANCE).read_text())
    signed = keys.sign(PAYLOAD_TYPE, b"[]")
    own = {"keyid": signed.key_id, "sig": b64encode(signed.data).decode()}
    for wrong in (
        b"",
        b"\xff",
        b"[]",
        b"1",
        b"[" * 100_000,
        json.dumps({**whole, "payload": 1}).encode(),
        json.dumps({**whole, "payload": b64encode(b"{}").decode()}).encode(),
        json.dumps({**whole, "payloadType": "text/plain"}).encode(),
        json.dumps({**whole, "signatures": []}).encode(),
        json.dumps({**whole, "signatures": {"a": 1}}).encode(),
        json.dumps({**whole, "signatures": [*[{"keyid": "", "sig": ""}] * 10**5, *whole["signatures"]]}).encode(),
        json.dumps({**whole, "payload": b64encode(b"[]").decode(), "signatures": [own]}).encode(),
    ):
        replace_provenance(bundle, wrong or b" ")
        [told] = Bundle(bundle).damage(keys)
        assert f"{PROVENANCE} cannot be trusted: " in told
        assert "\n" not in told
