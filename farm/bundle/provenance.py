"""The provenance of a bundle: an in-toto statement about its files, in a DSSE envelope if it is signed.

The statement (https://in-toto.io/Statement/v1) has every file of the bundle but the manifest as a subject, and says in
SLSA's terms (https://slsa.dev/provenance/v1) what they were made from and with. The manifest cannot be a subject, since
it names the statement: `farm_manifest` is the digest of its other members.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from farm.signing import Keyring, Signature

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
BUILD_TYPE = "urn:sparse-compile-farm:build:v1"
BUILDER = "urn:sparse-compile-farm:builder"
_MOST_SIGNATURES = 16
_ABOUT = ("sha256", "provenance")
"""Members of the manifest that depend on the statement."""


class ProvenanceError(Exception):
    """A statement that does not hold. The message is the reason alone."""


def statement_of(
    manifest: Mapping[str, Any], digests: Mapping[str, str], program: str, verification: Sequence[Mapping[str, Any]]
) -> bytes:
    """The statement about a bundle; `digests` are those of its files by path, `manifest` lacks the statement's entry.

    `verification` has one entry for each verified kernel; empty if the layers were not verified.
    """
    details = {
        "builder": {"id": BUILDER, "version": {"sparse-compile-farm": program, **manifest["toolchain"]}},
        "metadata": {"invocationId": manifest["job"]["id"], "startedOn": manifest["job"]["submitted_at"]},
    }
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "model": manifest["model"]["file"],
                "archs": manifest["archs"],
                "batches": manifest["batches"],
            },
            "resolvedDependencies": _materials(manifest),
        },
        "runDetails": details | ({"farm_verification": list(verification)} if verification else {}),
        "farm_manifest": {"sha256": manifest_digest(manifest)},
    }
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digests[name]}} for name in sorted(digests)],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    return json.dumps(statement, indent=2, ensure_ascii=False).encode() + b"\n"


def _materials(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The model, each layer's weights and the templates. Keys that are no digests of bytes have names of their own."""
    cubins = [
        each for layer in manifest["layers"] for launch in layer["launches"] for each in launch["cubins"].values()
    ]
    templates = sorted({each["template_key"] for each in cubins})
    return [
        {"name": manifest["model"]["file"], "digest": {"farm_model": manifest["model"]["sha256"]}},
        *(
            {"name": f"weights of {layer['name']}", "digest": {"sha256": layer["weights"]["sha256"]}}
            for layer in manifest["layers"]
        ),
        *({"name": "template", "digest": {"farm_template_key": key}} for key in templates),
    ]


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over the manifest's members that the statement is about, as JSON with sorted keys and without spaces."""
    rest = {name: value for name, value in manifest.items() if name not in _ABOUT}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(statement: bytes, keys: Keyring) -> bytes:
    """The statement in a DSSE envelope. Raises UsageError without a private key."""
    signature = keys.sign(PAYLOAD_TYPE, statement)
    envelope = {
        "payloadType": PAYLOAD_TYPE,
        "payload": b64encode(statement).decode(),
        "signatures": [{"keyid": signature.key_id, "sig": b64encode(signature.data).decode()}],
    }
    return json.dumps(envelope, indent=2).encode() + b"\n"


def check_provenance(data: bytes, manifest: bytes, digests: Mapping[str, str], keys: Keyring) -> None:
    """Checks that one of the keys signed a statement about these files and this manifest.

    Raises ProvenanceError.
    """
    try:
        envelope = json.loads(data)
        if "payloadType" not in envelope:
            raise ProvenanceError("it is not signed")
        payload, kind = b64decode(envelope["payload"], validate=True), str(envelope["payloadType"])
        signatures = [
            Signature(str(each["keyid"]), b64decode(each["sig"], validate=True))
            for each in envelope["signatures"][:_MOST_SIGNATURES]
        ]
        if kind != PAYLOAD_TYPE or not any(keys.accepts(kind, payload, each) for each in signatures):
            raise ProvenanceError(f"no key of {keys.path} made its signature")
        statement = json.loads(payload)
        signed = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
        signed_manifest = statement["predicate"]["farm_manifest"]["sha256"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ProvenanceError("it cannot be read") from None
    if signed != digests:
        changed = min(name for name in signed.keys() | digests.keys() if signed.get(name) != digests.get(name))
        raise ProvenanceError(f"its signature is for another {changed}")
    if signed_manifest != manifest_digest(json.loads(manifest)):
        raise ProvenanceError("its signature is for another manifest")
