"""The plan of jobs: each distinct template and cubin that they need, once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import needs_clusters, template_cost
from codegen.keys import TemplateKey, cubin_key, patch_template_key, template_key
from codegen.sass.qualification import DEFAULT_TRUST, NO_QUALIFICATIONS, Assembler, Qualifications, assembler_for
from codegen.selection.code_size import average_instructions
from codegen.selection.tool_time import NVCC_MOST_SECONDS, direct_seconds, nvcc_seconds, ptxas_seconds
from codegen.target.arch import served_archs, virtual_arch
from codegen.toolchain.ptxas import level_of, ptxas_options
from codegen.toolchain.tools import Toolchain
from farm.jobs.model import Build, BuildOptions, Job, NewJob
from farm.worker.messages import CubinRequest, TemplateRequest


@dataclass(frozen=True)
class Target:
    """A consumer of a cubin: one part of one build of one job, for one architecture."""

    job: str
    build: int
    """Id of the build in the ledger."""
    arch: str
    part: int
    """Index of the part in the build's parts."""
    left_to_ptxas: str = field(default="", compare=False)
    """Why ptxas assembles it instead of the assembler that the job asks for; empty otherwise."""
    evidence: str = field(default="", compare=False)
    """Evidence of direct code; empty for ptxas and value patches."""
    only_checked: bool = field(default=False, compare=False)
    """Whether ptxas assembles it only because no GPU has qualified direct code."""


@dataclass(frozen=True)
class Plan:
    """Templates, longest predicted time first, cubins, and the targets of each cubin."""

    templates: tuple[TemplateRequest, ...]
    cubins: tuple[CubinRequest, ...]
    targets: Mapping[str, tuple[Target, ...]]
    """Targets by cubin key; layers of equal shape and weights share their cubins."""
    template_fields: Mapping[str, Mapping[str, str]]
    """Fields of each template key, by its digest."""
    cubin_fields: Mapping[str, Mapping[str, str]]
    """Fields of each cubin key, by its digest."""


def plan(
    work: Iterable[tuple[Job | NewJob, Sequence[Build]]],
    toolchain: Toolchain,
    qualifications: Qualifications = NO_QUALIFICATIONS,
) -> Plan:
    """Plan the builds of several jobs together, so that a shared template or cubin is built once.

    `qualifications` say which layers `--assembler auto` assembles directly. The first cubin with a mask takes ptxas's
    time. The cubins of one part for several architectures stay adjacent, so that a worker rewrites the template
    once for all of them. Raises ArchError for an architecture that the toolchain does not know.
    """

    @cache
    def template_of(spec: LayerSpec, tiling: Tiling, virtual: str) -> tuple[TemplateKey, TemplateRequest]:
        key = template_key(spec, tiling, virtual, toolchain.nvcc_version, toolchain.compiler_digest)
        seconds = nvcc_seconds(spec, tiling) or NVCC_MOST_SECONDS
        return key, TemplateRequest(spec, tiling, virtual, key.digest, template_cost(spec, tiling), seconds=seconds)

    instructions_of = cache(average_instructions)

    templates: dict[str, TemplateRequest] = {}
    cubins: dict[str, CubinRequest] = {}
    patches: set[str] = set()
    """Keys of patch templates: the first cubin of each takes ptxas's time."""
    targets: dict[str, list[Target]] = {}
    template_fields: dict[str, Mapping[str, str]] = {}
    cubin_fields: dict[str, Mapping[str, str]] = {}
    for job, builds in work:
        for build in builds:
            clusters = needs_clusters(build.tiling)
            split = build.tiling.splits_streams
            options = ptxas_options(job.options.optimisation, clusters=split)
            for (number, part), arch in _parts(build, job.options):
                virtual = virtual_arch(arch, clusters=clusters)
                of_template, template = template_of(build.spec, build.tiling, virtual)
                assembler, reason = assembler_of(job.options, build.spec, build.tiling, arch, toolchain, qualifications)
                of_cubin = cubin_key(
                    template.key, build.weights, part, arch, options, toolchain.ptxas_version, made_by=assembler
                )
                key = of_cubin.digest
                templates.setdefault(template.key, template)
                if key not in cubins:
                    patch = ""
                    if assembler == "patch":
                        version = toolchain.ptxas_version
                        patch = patch_template_key(template.key, build.mask, part, arch, options, version).digest
                    instructions = instructions_of(build.spec, build.tiling, build.nonzeros) * (part.end - part.first)
                    cost, whole = _cost(build, part), arch in build.whole
                    if assembler == "direct" or patch in patches:
                        seconds = direct_seconds(instructions)
                    else:
                        seconds = ptxas_seconds(build.spec, instructions, level_of(options))
                    if patch:
                        patches.add(patch)
                    cubins[key] = CubinRequest(
                        template,
                        build.weights,
                        part,
                        arch,
                        options,
                        key,
                        cost,
                        seconds=seconds,
                        assembler=assembler,
                        patch_template=patch,
                        whole=whole,
                    )
                target = Target(job.id, build.id, arch, number, reason)
                if assembler == "direct":
                    known = qualifications.evidence(arch, toolchain.ptxas_version, build.spec.data_type)
                    target = replace(target, evidence=known)
                else:
                    target = replace(
                        target, only_checked=_only_checked(job.options, build, arch, toolchain, qualifications)
                    )
                targets.setdefault(key, []).append(target)
                if template.key not in template_fields:
                    template_fields[template.key] = of_template.fields()
                if key not in cubin_fields:
                    cubin_fields[key] = of_cubin.fields()
    return Plan(
        templates=tuple(sorted(templates.values(), key=lambda request: -request.seconds)),
        cubins=tuple(cubins.values()),
        targets={key: tuple(who) for key, who in targets.items()},
        template_fields=template_fields,
        cubin_fields=cubin_fields,
    )


def assembler_of(
    options: BuildOptions,
    spec: LayerSpec,
    tiling: Tiling,
    arch: str,
    toolchain: Toolchain,
    qualifications: Qualifications,
) -> tuple[Assembler, str]:
    """The assembler of a layer for an architecture, and why it is not the requested one (empty if it is)."""
    if options.assembler == "auto" and arch in options.shared and len(served_archs(arch)) > 1:
        return "ptxas", f"direct code is for {arch} alone, and other GPUs shall run it: leave out the +"
    return assembler_for(
        options.assembler,
        spec,
        tiling,
        arch,
        toolchain.ptxas_version,
        qualifications,
        optimisation=options.optimisation,
        trust=options.trust or DEFAULT_TRUST,
    )


def _only_checked(
    options: BuildOptions, build: Build, arch: str, toolchain: Toolchain, qualifications: Qualifications
) -> bool:
    """Whether trust `checked` would let the direct assembler make a layer."""
    trusting = replace(options, trust="checked")
    by, _ = assembler_of(trusting, build.spec, build.tiling, arch, toolchain, qualifications)
    return by == "direct"


def no_longer_whole(
    build: Build, options: BuildOptions, toolchain: Toolchain, qualifications: Qualifications
) -> tuple[tuple[str, str], ...]:
    """Architectures for which a layer planned as one cubin must be split, since ptxas assembles it now, and why."""
    found = [
        (arch, assembler_of(options, build.spec, build.tiling, arch, toolchain, qualifications)) for arch in build.whole
    ]
    return tuple((arch, reason) for arch, (assembler, reason) in found if assembler != "direct")


def plan_of(job: Job, build: Build, arch: str, toolchain: Toolchain, qualifications: Qualifications) -> Plan:
    """Plan the parts of a layer that is no longer one cubin of an architecture, with ptxas's time."""
    only = replace(job, options=replace(job.options, archs=(arch,)))
    found = plan([(only, [replace(build, choices=())])], toolchain, qualifications)
    of_group = average_instructions(build.spec, build.tiling, build.nonzeros)

    def seconds(request: CubinRequest) -> float:
        instructions = of_group * (request.part.end - request.part.first)
        return ptxas_seconds(build.spec, instructions, level_of(request.options))

    return replace(found, cubins=tuple(replace(each, seconds=seconds(each), refused=True) for each in found.cubins))


def _parts(build: Build, options: BuildOptions) -> Iterator[tuple[tuple[int, Part], str]]:
    """Each numbered part with each architecture; the architectures of one part are adjacent."""
    archs = build.archs(options)
    for number in range(max(len(build.parts_of(arch)) for arch in archs)):
        for arch in archs:
            if number < len(parts := build.parts_of(arch)):
                yield (number, parts[number]), arch


def _cost(build: Build, part: Part) -> int:
    """The part's share of the layer's multiply-adds, assuming K groups of equal cost."""
    return build.nonzeros * build.tiling.rows * (part.end - part.first) // build.parts[-1].end
