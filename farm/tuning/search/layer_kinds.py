"""Layers to tune: their kinds, their order and the number of candidates of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Accumulator, Tiling
from codegen.kernels import lower, tiled
from codegen.sass.qualification import Assembler
from codegen.selection.block_groups import with_several_groups
from codegen.selection.choose import choose_parts, misfit_of
from codegen.selection.code_size import stream_instructions
from codegen.selection.cost_model import predict_microseconds
from codegen.selection.tool_time import SKELETON_SECONDS, direct_seconds, nvcc_seconds, ptxas_seconds
from codegen.target.device_model import DeviceModel, device_for
from farm.cuda.measure.workload import Case
from farm.tuning.book import key_of, related
from farm.tuning.record import TuningKey, TuningRecord
from farm.tuning.search.building import Builder, Building, spread
from farm.tuning.search.candidates import Ranker, Unranked, serial_ranker

MIN_CANDIDATES = 2
"""Fewest candidates of a layer when the time is given for all layers."""
BUILDING_SHARE = 0.6
"""Share of the given time times the builders that predicted builds may take; the GPU needs time too."""


@dataclass(frozen=True, eq=False)
class Kind:
    """Layers at a batch that share a record; the first is measured."""

    key: TuningKey
    case: Case
    also: tuple[str, ...]
    """Names of the other layers."""
    ranked: tuple[Tiling, ...]
    """Candidates in order, the cost model's choice first; empty if no tiling fits."""
    device: DeviceModel
    microseconds: float
    """Predicted total time of these layers with the first candidate."""
    build_seconds: float
    """Predicted CPU time of the tools for one candidate."""


@dataclass(frozen=True)
class Effort:
    """Limits of a tuning run."""

    budget_seconds: float = 60.0
    """Time per layer and batch; the cost model's first choice is measured in any case."""
    candidates: int | None = None
    """Most candidates per layer; None: as many as the time allows."""
    seconds: float | None = None
    """Time for all layers together, instead of the budget per layer."""

    def buildings(self, kinds: Sequence[Kind], builder: Builder, accumulate: Accumulator) -> list[Building]:
        """Candidate builds of each kind."""
        return [
            Building(kind.case, builder, kind.ranked, accumulate, self._most(kind, share, builder.workers))
            for kind, share in zip(kinds, shares_of(kinds), strict=True)
        ]

    def _most(self, kind: Kind, share: float, workers: int) -> int | None:
        """Most candidates of a kind: in proportion to its share of the time."""
        if self.seconds is None:
            return self.candidates
        count = int(share * BUILDING_SHARE * self.seconds * workers / kind.build_seconds)
        count = max(MIN_CANDIDATES, count)
        return count if self.candidates is None else min(count, self.candidates)


BY_PLACE = 4
"""Leading tilings that are also measured with the other block order."""

TABLES = 6
"""Weight-table tilings of a convolution measured after its leading ones."""

LEADING = 2
"""First candidates of conv2d near which tilings with several K groups in a block are measured too."""
RELATED = 4
"""Tilings of records at other densities and batches measured after the cost model's choice."""

AssemblerOf = Callable[[LayerSpec, Tiling], Assembler]
"""Tells the assembler of a layer."""


def kinds_of(
    cases: Sequence[Case],
    arch: str,
    accumulate: Accumulator,
    optimisation: int,
    assembler_of: AssemblerOf,
    ranker: Ranker = serial_ranker,
    *,
    gpu: str = "",
) -> list[Kind]:
    """Kinds of layers, by the key of their records; the largest predicted share of GPU time first.

    `gpu`: name of the GPU, if not the architecture's typical one.
    """
    device = device_for(arch, [gpu])
    of_key: dict[TuningKey, list[Case]] = {}
    for case in cases:
        key = key_of(arch, case.spec, case.images, case.weights.nonzeros_per_output, accumulate, optimisation)
        of_key.setdefault(key, []).append(case)
    ranked = ranker([Unranked.of(alike[0], arch, accumulate, device) for alike in of_key.values()])
    kinds = [
        _kind(key, alike, found, device, optimisation, assembler_of)
        for (key, alike), found in zip(of_key.items(), ranked, strict=True)
    ]
    shares = dict(zip(kinds, shares_of(kinds), strict=True))
    return sorted(kinds, key=lambda kind: -shares[kind])


def led_by_records(kind: Kind, records: Iterable[TuningRecord]) -> Kind:
    """The kind with the tilings of related records, nearest density first, after the first candidate.

    Tilings near the leading ones whose blocks have several K groups stand in turn with the others.
    """
    fitting = _fitting(kind, (tiling for _, tiling in related(records, kind.key)))
    ranked = tuple(dict.fromkeys((*kind.ranked[:1], *fitting[:RELATED], *kind.ranked[1:])))
    layer = lower(kind.case.spec)
    leads = [each for each in ranked if each.kernel == "conv2d"][:LEADING]
    several = _fitting(kind, (near for lead in leads for near in with_several_groups(layer, lead)))
    in_turn = chain.from_iterable(zip_longest(several, ranked[1:]))
    return replace(kind, ranked=tuple(dict.fromkeys((*ranked[:1], *filter(None, in_turn)))))


def _fitting(kind: Kind, tilings: Iterable[Tiling]) -> list[Tiling]:
    """The tilings that fit the kind's layer, each once."""
    spec, nonzeros = kind.case.spec, kind.case.weights.nonzeros_per_output
    return [each for each in dict.fromkeys(tilings) if not misfit_of(spec, each, nonzeros, kind.device)]


def shares_of(kinds: Sequence[Kind]) -> list[float]:
    """Share of each kind in the time at its batch size, with equal weight per batch size; the sum is 1."""
    whole: dict[int, float] = {}
    for kind in kinds:
        batch = kind.case.key.batch
        whole[batch] = whole.get(batch, 0.0) + kind.microseconds
    return [kind.microseconds / ((whole[kind.case.key.batch] or 1.0) * len(whole)) for kind in kinds]


def part_of(kinds: Sequence[Kind]) -> float:
    """Share of the remaining time for the first kind: half is divided by share, half evenly."""
    return (shares_of(kinds)[0] + 1 / len(kinds)) / 2


def _kind(
    key: TuningKey,
    cases: Sequence[Case],
    found: Sequence[Tiling],
    device: DeviceModel,
    optimisation: int,
    assembler_of: AssemblerOf,
) -> Kind:
    case, *alike = cases
    spec, nonzeros = case.spec, case.weights.nonzeros_per_output
    tables = [each for each in found if each.kernel == "table_conv2d"]
    others = [each for each in found if each not in tables] if tables else found
    ranked = _in_both_orders(spec, spread(others))
    ranked[BY_PLACE:BY_PLACE] = spread(tables)[:TABLES]
    also = tuple(each.key.operator for each in alike if each.key.operator != case.key.operator)
    if not ranked:
        return Kind(key, case, also, (), device, 0.0, 1.0)
    first = ranked[0]
    density = case.weights.nonzeros / spec.weights_count
    once = predict_microseconds(tiled(spec, first), case.images, density, device=device)
    streams = stream_instructions(spec, first, nonzeros)
    seconds = nvcc_seconds(spec, first) or 0.0
    if assembler_of(spec, first) == "direct":
        seconds += SKELETON_SECONDS + direct_seconds(float(streams.sum()))
    else:
        parts = [slice(part.first, part.end) for part in choose_parts(spec, first, nonzeros)]
        seconds += sum(ptxas_seconds(spec, float(streams[part].sum()), optimisation) for part in parts)
    return Kind(key, case, also, tuple(ranked), device, once * len(cases), seconds)


def _in_both_orders(spec: LayerSpec, tilings: Sequence[Tiling]) -> list[Tiling]:
    """Adds the other block order after each leading tiling that has one."""
    found: list[Tiling] = []
    for i, tiling in enumerate(tilings):
        found.append(tiling)
        if i < BY_PLACE and tiling.kernel == "conv2d" and tiling.cluster == 1:
            other = replace(tiling, order="place" if tiling.order == "group" else "group")
            found += [other] * (tiled(spec, tiling).streams.count > 1)
    return list(dict.fromkeys(found))
