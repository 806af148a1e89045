"""Cache keys: all that a template's or a cubin's bytes depend on, and how it is put together.

A key is SHA-256 over labelled, length-prefixed fields, so that no two field lists can look alike. The fields themselves
are kept beside the digest, so that two keys can be compared in words.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Part, Tiling
from codegen.sass.qualification import Assembler
from codegen.selection.question import RankingQuestion
from codegen.source_digest import code_of

SCHEMA = 1
"""Raised whenever the meaning of a stored template or cubin changes."""

_LAYER_SOURCES = ("ir/", "kernels/")
GENERATOR_SOURCES = (*_LAYER_SOURCES, "ptx/full_form.py", "ptx/template.py", "ptx/template_lines.py")
"""Sources that shape a template: everything `make_template` imports, CUDA sources included.

The modules that start tools are not among them: versions and flags are fields of their own, and tools see no
environment.
"""
REWRITER_SOURCES = (
    *GENERATOR_SOURCES,
    "ptx/data_table.py",
    "ptx/rewrite.py",
    "sass/cubin.py",
    "sass/isa/encoding.py",
    "toolchain/ptxas.py",
)
"""Sources that shape a cubin assembled by ptxas: everything `rewrite` and `assemble` import."""
ASSEMBLER_SOURCES = (
    "sass/__init__.py",
    "sass/assemble/",
    "sass/cubin.py",
    "sass/isa/",
    "sass/skeleton/",
    "sass/verify/",
)
"""The assembler itself, which a qualification is for. What makes templates is not part of it: it recognises or refuses
them."""
MACHINE_SOURCES = tuple(dict.fromkeys((*REWRITER_SOURCES, *ASSEMBLER_SOURCES)))
"""Sources that shape a cubin assembled without ptxas, and its skeleton."""
PATCH_SOURCES = (*REWRITER_SOURCES, "sass/isa/opcodes.py", "sass/value_patch.py")
"""Sources that shape a patch template and the cubins patched from it."""
RANKING_SOURCES = (
    *_LAYER_SOURCES,
    "selection/candidates.py",
    "selection/coefficients.py",
    "selection/cost_model.py",
    "selection/costs/",
    "selection/feasibility.py",
    "selection/kernel_split.py",
    "selection/partial_sectors.py",
    "selection/question.py",
    "selection/ranking.py",
    "selection/table_candidates.py",
)
"""Sources of the cost model: everything `ranking_of` imports."""
_SUFFIXES = (".py", ".cu", ".cuh")


def digest_fields(fields: Mapping[str, str]) -> str:
    """The digest of a key: each label and value with its length before it, in the order of the labels."""
    hasher = hashlib.sha256()
    for label in sorted(fields):
        for part in (label.encode(), fields[label].encode()):
            hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.hexdigest()


class Key(ABC):
    """What something that is made depends on."""

    @abstractmethod
    def fields(self) -> dict[str, str]:
        """By label; the stage and the schema are among them."""

    @property
    def digest(self) -> str:
        return digest_fields(self.fields())


@dataclass(frozen=True)
class TemplateKey(Key):
    """What the PTX of a template depends on."""

    spec: LayerSpec
    tiling: Tiling
    generator_digest: str
    """Digest of GENERATOR_SOURCES."""
    compiler: str
    """Version of nvcc."""
    flags: tuple[str, ...]
    virtual_arch: str

    def fields(self) -> dict[str, str]:
        return {
            "stage": "template",
            "schema": str(SCHEMA),
            "generator": self.generator_digest,
            "compiler": self.compiler,
            "flags": json.dumps(self.flags),
            "virtual_arch": self.virtual_arch,
            **_spec_fields(self.spec),
            **{f"tiling.{name}": json.dumps(value) for name, value in self.tiling.to_json().items()},
        }


@dataclass(frozen=True)
class CubinKey(Key):
    """What a cubin depends on; a hit needs neither a rewrite nor ptxas."""

    template: str
    """Digest of the template's key."""
    weights: str
    """Digest of weights and bias of the whole layer."""
    part: Part
    rewriter_digest: str
    """Digest of REWRITER_SOURCES."""
    assembler: str
    """Version of ptxas."""
    arch: str
    options: tuple[str, ...]
    """Options of ptxas, in order."""
    machine_digest: str = ""
    """Digest of MACHINE_SOURCES or PATCH_SOURCES where they have a part in it; empty where ptxas does it."""

    def fields(self) -> dict[str, str]:
        machine = {"machine": self.machine_digest} if self.machine_digest else {}
        return {
            **machine,
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


@dataclass(frozen=True)
class SkeletonKey(Key):
    """What the skeleton of a template depends on: what ptxas makes of it without weights."""

    template: str
    """Digest of the template's key."""
    machine_digest: str
    """Digest of MACHINE_SOURCES."""
    assembler: str
    """Version of ptxas."""
    arch: str
    options: tuple[str, ...]
    """Options of ptxas, in order."""

    def fields(self) -> dict[str, str]:
        return {
            "stage": "skeleton",
            "schema": str(SCHEMA),
            "template": self.template,
            "machine": self.machine_digest,
            "assembler": self.assembler,
            "arch": self.arch,
            "options": json.dumps(self.options),
        }


@dataclass(frozen=True)
class PatchTemplateKey(Key):
    """Ingredients of a patch template: what ptxas makes of a mask."""

    template: str
    """Digest of the template's key."""
    mask: str
    """Digest of which weights and biases are not zero."""
    part: Part
    machine_digest: str
    """Digest of PATCH_SOURCES."""
    assembler: str
    """Version of ptxas."""
    arch: str
    options: tuple[str, ...]
    """Options of ptxas, in order."""

    def fields(self) -> dict[str, str]:
        return {
            "stage": "patch",
            "schema": str(SCHEMA),
            "template": self.template,
            "mask": self.mask,
            "part": f"{self.part.first}:{self.part.end}",
            "machine": self.machine_digest,
            "assembler": self.assembler,
            "arch": self.arch,
            "options": json.dumps(self.options),
        }


@dataclass(frozen=True)
class RankingKey(Key):
    """What the order of a layer's tilings depends on: bands, not weights."""

    question: RankingQuestion
    model_digest: str
    """Digest of RANKING_SOURCES."""

    def fields(self) -> dict[str, str]:
        return {
            "stage": "ranking",
            "schema": str(SCHEMA),
            "model": self.model_digest,
            "batch": str(self.question.batch),
            "density": str(self.question.density),
            "accumulate": self.question.accumulate,
            "clusters": str(self.question.clusters),
            "tables": str(self.question.tables),
            **_spec_fields(self.question.spec),
        }


def template_key(spec: LayerSpec, tiling: Tiling, virtual_arch: str, compiler: str) -> TemplateKey:
    """Identifies the template that this program makes with this version of nvcc, without making it."""
    from codegen.ptx.template import NVCC_FLAGS  # with NumPy, which the ledger's keys of records do without

    return TemplateKey(
        spec=spec,
        tiling=tiling,
        generator_digest=_digest_of(GENERATOR_SOURCES),
        compiler=compiler,
        flags=NVCC_FLAGS,
        virtual_arch=virtual_arch,
    )


def ranking_key(question: RankingQuestion) -> RankingKey:
    """Identifies the answer of this program's cost model to a question."""
    return RankingKey(question, _digest_of(RANKING_SOURCES))


def skeleton_key(template: str, arch: str, options: tuple[str, ...], assembler: str) -> SkeletonKey:
    """Identifies the skeleton that this program makes with this version of ptxas; `template` is a digest."""
    return SkeletonKey(template, _digest_of(MACHINE_SOURCES), assembler, arch, options)


def patch_template_key(
    template: str, mask: str, part: Part, arch: str, options: tuple[str, ...], assembler: str
) -> PatchTemplateKey:
    """Identifies the patch template of a mask by this version of ptxas; `template` and `mask` are digests."""
    return PatchTemplateKey(template, mask, part, _digest_of(PATCH_SOURCES), assembler, arch, options)


def cubin_key(
    template: str,
    weights: str,
    part: Part,
    arch: str,
    options: tuple[str, ...],
    assembler: str,
    *,
    made_by: Assembler = "ptxas",
) -> CubinKey:
    """Identifies the cubin that this program makes with this version of ptxas; `template` and `weights` are digests."""
    sources = {"direct": MACHINE_SOURCES, "patch": PATCH_SOURCES}.get(made_by)
    return CubinKey(
        template=template,
        weights=weights,
        part=part,
        rewriter_digest=_digest_of(REWRITER_SOURCES),
        assembler=assembler,
        arch=arch,
        options=options,
        machine_digest="" if sources is None else _digest_of(sources),
    )


def _spec_fields(spec: LayerSpec) -> dict[str, str]:
    return {f"spec.{name}": json.dumps(value) for name, value in spec.to_json().items()}


@cache
def assembler_digest() -> str:
    """Digest of the assembler's code, which a qualification names; comments and docstrings do not count."""
    return code_digest(ASSEMBLER_SOURCES)


def code_digest(sources: tuple[str, ...]) -> str:
    """Digest of sources without comments and docstrings of Python; CUDA sources count whole."""
    root = Path(str(files("codegen")))
    texts = {path: (root / path).read_text() for path in source_files(sources)}
    return digest_fields({str(path): code_of(text) if path.suffix == ".py" else text for path, text in texts.items()})


def source_files(sources: tuple[str, ...]) -> list[Path]:
    """The files that these names stand for, relative to codegen/; a folder stands for all sources below it."""
    root = Path(str(files("codegen")))
    found = {path for name in sources for path in ((root / name).rglob("*") if name.endswith("/") else [root / name])}
    return sorted(path.relative_to(root) for path in found if path.suffix in _SUFFIXES)


@cache
def _digest_of(sources: tuple[str, ...]) -> str:
    root = Path(str(files("codegen")))
    return digest_fields({str(path): (root / path).read_text() for path in source_files(sources)})
