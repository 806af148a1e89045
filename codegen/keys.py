"""Cache keys: SHA-256 over labelled, length-prefixed fields, so that no two field lists can look alike.

The fields themselves are kept beside the digest, so that two keys can be compared in words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from codegen.spec import LayerSpec
from codegen.tiling import Part, Tiling

SCHEMA = 3
"""Raised whenever the meaning of a stored template or cubin changes."""


def digest_fields(fields: Mapping[str, str]) -> str:
    """The digest of a key: each label and value with its length before it, in the order of the labels."""
    hasher = hashlib.sha256()
    for label in sorted(fields):
        for part in (label.encode(), fields[label].encode()):
            hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.hexdigest()


@dataclass(frozen=True)
class TemplateKey:
    """What the PTX of a template depends on."""

    spec: LayerSpec
    tiling: Tiling
    operator_digest: str
    """Of the operator's .cu file and its generator."""
    compiler: str
    """Version of nvcc."""
    flags: tuple[str, ...]
    virtual_arch: str

    def fields(self) -> dict[str, str]:
        return {
            "stage": "template",
            "schema": str(SCHEMA),
            "operator": self.operator_digest,
            "compiler": self.compiler,
            "flags": json.dumps(self.flags),
            "virtual_arch": self.virtual_arch,
            **{f"spec.{name}": json.dumps(value) for name, value in self.spec.to_json().items()},
            **{f"tiling.{name}": json.dumps(value) for name, value in self.tiling.to_json().items()},
        }

    @property
    def digest(self) -> str:
        return digest_fields(self.fields())


@dataclass(frozen=True)
class CubinKey:
    """What a cubin depends on; a hit needs neither a rewrite nor ptxas."""

    template: str
    """Digest of the template's key."""
    weights: str
    """Digest of weights and bias of the whole layer."""
    part: Part
    rewriter_digest: str
    assembler: str
    """Version of ptxas."""
    arch: str
    options: tuple[str, ...]
    """Options of ptxas, in order."""

    def fields(self) -> dict[str, str]:
        return {
            "stage": "cubin",
            "schema": str(SCHEMA),
            "template": self.template,
            "weights": self.weights,
            "part": f"{self.part.first}:{self.part.end}",
            "rewriter": self.rewriter_digest,
            "assembler": self.assembler,
            "arch": self.arch,
            "options": json.dumps(self.options),
        }

    @property
    def digest(self) -> str:
        return digest_fields(self.fields())
