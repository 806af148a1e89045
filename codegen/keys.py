"""Cache keys: the ingredients of templates, cubins, skeletons and rankings.

A key is a SHA-256 digest over labelled, length-prefixed fields, so that different fields never give equal input. The
fields are stored beside the digest, so that two keys can be compared field by field.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Part, Tiling
from codegen.sass.qualification import Assembler
from codegen.selection.question import RankingQuestion
from codegen.source_digest import cuda_code, python_code

SCHEMA = 1
"""Raised whenever the meaning of a stored template or cubin changes."""

_LAYER_SOURCES = ("ir/", "kernels/")
GENERATOR_SOURCES = (*_LAYER_SOURCES, "ptx/full_form.py", "ptx/template.py", "ptx/template_lines.py")
"""Sources that shape a template: everything `make_template` imports, including CUDA sources.

Modules that run tools are excluded: versions and flags are separate fields, and tools get no environment.
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
"""Sources of the assembler, which a qualification covers. Sources of templates are excluded, since the assembler checks
the templates that it gets."""
MACHINE_SOURCES = tuple(dict.fromkeys((*REWRITER_SOURCES, *ASSEMBLER_SOURCES)))
"""Sources that shape a directly assembled cubin and its skeleton."""
PATCH_SOURCES = (*REWRITER_SOURCES, "sass/isa/opcodes.py", "sass/value_patch.py")
"""Sources that shape a patch template and the cubins patched from it."""
RANKING_SOURCES = (
    *_LAYER_SOURCES,
    "selection/alternatives.py",
    "selection/candidates.py",
    "selection/code_limits.py",
    "selection/coefficients.py",
    "selection/cost_model.py",
    "selection/costs/",
    "selection/feasibility.py",
    "selection/kernel_split.py",
    "selection/large_blocks.py",
    "selection/partial_sectors.py",
    "selection/question.py",
    "selection/ranking.py",
    "target/device_model.py",
)
"""Sources of the cost model: everything `ranking_of` imports."""
_SUFFIXES = (".py", ".cu", ".cuh")


def digest_fields(fields: Mapping[str, str]) -> str:
    """The digest over labels and values, each prefixed with its length, sorted by label."""
    hasher = hashlib.sha256()
    for label in sorted(fields):
        for part in (label.encode(), fields[label].encode()):
            hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.hexdigest()


class Key(ABC):
    """Ingredients of a cached product."""

    @abstractmethod
    def fields(self) -> dict[str, str]:
        """The ingredients by label, including stage and schema."""

    @property
    def digest(self) -> str:
        return digest_fields(self.fields())


@dataclass(frozen=True)
class TemplateKey(Key):
    """Ingredients of a template's PTX."""

    spec: LayerSpec
    tiling: Tiling
    generator_digest: str
    """Digest of GENERATOR_SOURCES."""
    compiler: str
    """Version of nvcc."""
    compiler_digest: str
    """Digest of cicc, libdevice and the CUDA headers, which nvcc's version does not determine."""
    flags: tuple[str, ...]
    virtual_arch: str

    def fields(self) -> dict[str, str]:
        return {
            "stage": "template",
            "schema": str(SCHEMA),
            "generator": self.generator_digest,
            "compiler": self.compiler,
            "compiler_files": self.compiler_digest,
            "flags": json.dumps(self.flags),
            "virtual_arch": self.virtual_arch,
            **_spec_fields(self.spec),
            **{f"tiling.{name}": json.dumps(value) for name, value in self.tiling.to_json().items()},
        }


@dataclass(frozen=True)
class PtxasKey(Key):
    """Shared ingredients of what ptxas makes from a template."""

    template: str
    """Digest of the template's key."""
    assembler: str
    """Version of ptxas."""
    arch: str
    options: tuple[str, ...]
    """Options of ptxas, in order."""

    def _shared_fields(self) -> dict[str, str]:
        return {
            "schema": str(SCHEMA),
            "template": self.template,
            "assembler": self.assembler,
            "arch": self.arch,
            "options": json.dumps(self.options),
        }


@dataclass(frozen=True)
class CubinKey(PtxasKey):
    """Ingredients of a cubin; a cache hit needs neither the rewriter nor ptxas."""

    weights: str
    """Digest of weights and bias of the whole layer."""
    part: Part
    rewriter_digest: str
    """Digest of REWRITER_SOURCES."""
    machine_digest: str = ""
    """Digest of MACHINE_SOURCES or PATCH_SOURCES for a cubin made with them; empty for one assembled by ptxas."""

    def fields(self) -> dict[str, str]:
        machine = {"machine": self.machine_digest} if self.machine_digest else {}
        return {
            **self._shared_fields(),
            **machine,
            "stage": "cubin",
            "weights": self.weights,
            "part": _part_field(self.part),
            "rewriter": self.rewriter_digest,
        }


@dataclass(frozen=True)
class SkeletonKey(PtxasKey):
    """Ingredients of a template's skeleton: what ptxas makes of its marker PTX, without weights."""

    machine_digest: str
    """Digest of MACHINE_SOURCES."""

    def fields(self) -> dict[str, str]:
        return {**self._shared_fields(), "stage": "skeleton", "machine": self.machine_digest}


@dataclass(frozen=True)
class PatchTemplateKey(PtxasKey):
    """Ingredients of a patch template: what ptxas makes of a mask."""

    mask: str
    """Digest of the mask of non-zero weights and biases."""
    part: Part
    machine_digest: str
    """Digest of PATCH_SOURCES."""

    def fields(self) -> dict[str, str]:
        return {
            **self._shared_fields(),
            "stage": "patch",
            "mask": self.mask,
            "part": _part_field(self.part),
            "machine": self.machine_digest,
        }


@dataclass(frozen=True)
class RankingKey(Key):
    """Ingredients of a ranking of a layer's tilings; density counts in bands, not by the weights themselves."""

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
            "device": json.dumps(asdict(self.question.device)),
            **_spec_fields(self.question.spec),
        }


def template_key(
    spec: LayerSpec, tiling: Tiling, virtual_arch: str, compiler: str, compiler_digest: str
) -> TemplateKey:
    """The key of the template that this program makes with this version of nvcc and these files of its toolkit."""
    from codegen.ptx.template import NVCC_FLAGS  # imports NumPy, which the ledger's record keys do not need

    return TemplateKey(
        spec=spec,
        tiling=tiling,
        generator_digest=code_digest(GENERATOR_SOURCES),
        compiler=compiler,
        compiler_digest=compiler_digest,
        flags=NVCC_FLAGS,
        virtual_arch=virtual_arch,
    )


def ranking_key(question: RankingQuestion) -> RankingKey:
    """The key of the cost model's answer to a question."""
    return RankingKey(question, code_digest(RANKING_SOURCES))


def skeleton_key(template: str, arch: str, options: tuple[str, ...], assembler: str) -> SkeletonKey:
    """The key of a template's skeleton by this version of ptxas; `template` is a digest."""
    return SkeletonKey(template, assembler, arch, options, code_digest(MACHINE_SOURCES))


def patch_template_key(
    template: str, mask: str, part: Part, arch: str, options: tuple[str, ...], assembler: str
) -> PatchTemplateKey:
    """The key of a mask's patch template by this version of ptxas; `template` and `mask` are digests."""
    return PatchTemplateKey(template, assembler, arch, options, mask, part, code_digest(PATCH_SOURCES))


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
    """The key of a cubin by this version of ptxas; `template` and `weights` are digests."""
    sources = {"direct": MACHINE_SOURCES, "patch": PATCH_SOURCES}.get(made_by)
    return CubinKey(
        template=template,
        weights=weights,
        part=part,
        rewriter_digest=code_digest(REWRITER_SOURCES),
        assembler=assembler,
        arch=arch,
        options=options,
        machine_digest="" if sources is None else code_digest(sources),
    )


def _part_field(part: Part) -> str:
    return f"{part.first}:{part.end}"


def _spec_fields(spec: LayerSpec) -> dict[str, str]:
    return {f"spec.{name}": json.dumps(value) for name, value in spec.to_json().items()}


def assembler_digest() -> str:
    """Digest of the assembler's code, which qualifications record."""
    return code_digest(ASSEMBLER_SOURCES)


@cache
def code_digest(sources: tuple[str, ...]) -> str:
    """Digest of the code in these sources, which comments and docstrings are not part of."""
    return digest_fields({str(path): _code_in(path) for path in source_files(sources)})


def source_files(sources: tuple[str, ...]) -> list[Path]:
    """The source files of these names, relative to codegen/; a folder includes all sources below it."""
    root = Path(str(files("codegen")))
    found = {path for name in sources for path in ((root / name).rglob("*") if name.endswith("/") else [root / name])}
    return sorted(path.relative_to(root) for path in found if path.suffix in _SUFFIXES)


@cache
def _code_in(path: Path) -> str:
    """Code of a source file of codegen/, read once for all digests that cover it."""
    text = Path(str(files("codegen")), path).read_text()
    return python_code(text) if path.suffix == ".py" else cuda_code(text)
