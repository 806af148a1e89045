"""Explanations of cache hits and misses: a build's key beside the nearest key used before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from farm.errors import NotFoundError, UnfinishedError
from farm.jobs.model import Build, BuildResult, Job, Outcome
from farm.ledger import KeyUse, Ledger, Neighbour

_DIGESTS = {
    "weights": "the weights",
    "rewriter": "this program's rewriter",
    "machine": "this program's assembler",
    "generator": "this program's template generator",
    "operator": "the sources of the operator",
    "compiler_files": "cicc or the CUDA headers",
}
"""Fields that are digests, of which only a difference is shown."""
_NAMES = {
    "assembler": "ptxas",
    "compiler": "nvcc",
    "flags": "the flags of nvcc",
    "options": "the options of ptxas",
    "arch": "the architecture",
    "virtual_arch": "the virtual architecture",
    "part": "the part of the layer",
    "schema": "the schema of keys",
}


_NOT_OF_SHAPE = ("spec.epilogue", "spec.data_type")

NOTHING_ALIKE = (
    "nothing like it was built before: no earlier job has a layer of this name and shape, or one with these weights, "
    "or one with this template"
)


@dataclass(frozen=True)
class Explanation:
    """Explanation of one cubin's hit or miss."""

    arch: str
    batches: tuple[int, ...]
    """Batch sizes that it is for, if there are other cubins for others; else empty."""
    part: int
    """Number of the part, from 0."""
    outcome: Outcome
    lines: tuple[str, ...]
    """Explanation, line by line."""
    nearest: KeyUse | None
    """Use of the nearest key, or the build of the cubin that was hit."""
    differences: Mapping[str, tuple[str, str]]
    """Fields that differ between the nearest key and this one, with both values; `template.field` for a template's."""


def explain(
    ledger: Ledger, job: Job, builds: Sequence[Build], results: Sequence[BuildResult], what: str
) -> list[Explanation]:
    """Explains the cubins of `what`, LAYER or LAYER/ARCH. Raises NotFoundError, UnfinishedError."""
    of_layer, arch = _find(job, builds, what)
    found = [each for each in results if each.build in of_layer and arch in (None, each.arch)]
    if not found:
        raise UnfinishedError(
            f"nothing is known of {what} yet: job {job.id} is {job.status}, and nothing looked for it"
        )

    def order(each: BuildResult) -> tuple[int, tuple[int, ...], int]:
        return job.options.archs.index(each.arch), of_layer[each.build].own_batches(each.arch), each.part

    found.sort(key=order)
    searches = {number: _Search(ledger, job, build) for number, build in of_layer.items()}
    return [searches[each.build].explain(each) for each in found]


def _find(job: Job, builds: Sequence[Build], what: str) -> tuple[dict[int, Build], str | None]:
    """Builds of a layer by id, one per tiling of its architectures, and the architecture."""
    by_layer: dict[str, dict[int, Build]] = {}
    for build in builds:
        by_layer.setdefault(build.layer, {})[build.id] = build
    if what in by_layer:  # a layer's name may hold a slash
        return by_layer[what], None
    layer, _, arch = what.rpartition("/")
    if layer in by_layer and arch in job.options.archs:
        return by_layer[layer], arch
    if layer in by_layer:
        raise NotFoundError(f"job {job.id} was not for {arch}: its architectures are {', '.join(job.options.archs)}")
    raise NotFoundError(f"job {job.id} has no layer '{what}': farm inspect {job.id} lists them")


class _Search:
    def __init__(self, ledger: Ledger, job: Job, build: Build) -> None:
        self._neighbours = ledger.neighbours
        self._job = job
        self._build = build
        self._fields = cache(self._neighbours.fields)

    def explain(self, result: BuildResult) -> Explanation:
        uses = self._neighbours.uses(result.cubin_key)
        own = [use.at for use in uses if use.job == self._job.id and use.arch == result.arch]
        uses = [use for use in uses if use.at <= max(own)]  # later uses explain nothing
        before = [use for use in uses if use.job != self._job.id and use.outcome is Outcome.BUILT]
        if result.outcome is Outcome.HIT:
            return self._hit(result, uses)
        if before:
            said = (
                f"{before[-1].job} had built the very same cubin: since then the store has lost or removed it, or "
                "FARM_RECACHE was set"
            )
            return self._explanation(result, (said, *self._failure(result)), before[-1], {})
        return self._miss(result)

    def _hit(self, result: BuildResult, uses: list[KeyUse]) -> Explanation:
        made = [use for use in uses if use.outcome is Outcome.BUILT]
        elsewhere = [use for use in made if use.job != self._job.id]
        same = [use for use in made if use.job == self._job.id]
        if same:
            said = f"{same[0].layer} of this job has the same shape and weights, and was built"
        elif elsewhere:
            said = f"job {elsewhere[-1].job} ({elsewhere[-1].name}) built it for its layer {elsewhere[-1].layer}"
        else:
            said = "the job that built it is no longer in the ledger"
        maker = same[0] if same else elsewhere[-1] if elsewhere else None
        return self._explanation(result, (said,), maker, {})

    def _miss(self, result: BuildResult) -> Explanation:
        fields = self._fields(result.cubin_key)
        nearest = self._nearest(result, fields)
        if nearest is None:
            return self._explanation(result, (NOTHING_ALIKE, *self._failure(result)), None, {})
        differences = _differences(nearest.fields, fields)
        if "template" in differences:
            del differences["template"]
            then, now = self._fields(nearest.fields.get("template", "")), self._fields(result.template_key)
            differences |= {f"template.{name}": pair for name, pair in _differences(then, now).items()}
        uses = [use for use in self._neighbours.uses(nearest.digest) if use.number <= nearest.number]
        use = next((each for each in reversed(uses) if each.layer == self._build.layer), uses[-1] if uses else None)
        lines = [_in_words(name, *pair) for name, pair in sorted(differences.items())]
        lines.append(self._template(result))
        return self._explanation(result, (*lines, *self._failure(result)), use, differences)

    def _nearest(self, result: BuildResult, fields: Mapping[str, str]) -> Neighbour | None:
        """The comparable key with the most equal fields; ties go to this layer's name, then to the newest."""
        own_template = self._fields(result.template_key)

        @cache
        def likeness(template: str) -> float:
            theirs = self._fields(template)
            return _common(theirs, own_template) / max(1, len(own_template))

        def nearness(each: Neighbour) -> tuple[float, bool, int]:
            common = _common(each.fields, fields) + likeness(each.fields.get("template", ""))
            return common, self._build.layer in each.layers, each.number

        def alike(each: Neighbour) -> bool:
            """Whether a key is comparable; keys of other layers differ in every field."""
            template = each.fields.get("template", "")
            if template == result.template_key or each.fields.get("weights") == self._build.weights:
                return True
            return self._build.layer in each.layers and _shape(self._fields(template)) == _shape(own_template)

        near = self._neighbours.near(self._build, result.template_key, result.arch)
        return max(filter(alike, near), key=nearness, default=None)

    def _template(self, result: BuildResult) -> str:
        if result.template_seconds:
            return f"the template was made too, in {result.template_seconds:.1f} s of nvcc"
        return "the template was there"

    def _failure(self, result: BuildResult) -> tuple[str, ...]:
        return (f"it failed: {result.error}",) if result.outcome is Outcome.FAILED else ()

    def _explanation(
        self,
        result: BuildResult,
        lines: tuple[str, ...],
        nearest: KeyUse | None,
        differences: Mapping[str, tuple[str, str]],
    ) -> Explanation:
        return Explanation(
            result.arch, self._build.own_batches(result.arch), result.part, result.outcome, lines, nearest, differences
        )


def _shape(template: Mapping[str, str]) -> dict[str, str]:
    """Shape fields of a template's key."""
    return {name: each for name, each in template.items() if name.startswith("spec.") and name not in _NOT_OF_SHAPE}


def _common(a: Mapping[str, str], b: Mapping[str, str]) -> int:
    return sum(a.get(name) == value for name, value in b.items())


def _differences(then: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    names = sorted(then.keys() | now.keys())
    return {name: (then.get(name, ""), now.get(name, "")) for name in names if then.get(name) != now.get(name)}


def _in_words(field: str, then: str, now: str) -> str:
    name = field.removeprefix("template.")
    if name == "machine" and not (then and now):
        return "its machine code is made by ptxas now" if then else "its machine code is not made by ptxas now"
    if name in _DIGESTS:
        return f"{_DIGESTS[name]} changed ({then[:8] or '-'} -> {now[:8] or '-'})"
    if name in _NAMES:
        return f"{_NAMES[name]}: {then or '-'} -> {now or '-'}"
    of, _, detail = name.partition(".")
    shown = {"spec": "the layer's ", "tiling": "the tiling's "}.get(of, "")
    return f"{shown}{(detail or name).replace('_', ' ')}: {then or '-'} -> {now or '-'}"
