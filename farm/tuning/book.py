"""Tilings of a job's layers: from the best tuning record per architecture, else from the cost model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codegen.ir.layer_spec import AddResidual, LayerSpec, plain
from codegen.ir.tiling import Accumulator, Tiling
from codegen.kernels import canonical, tiled
from codegen.kernels.geometry import geometry_of
from codegen.selection.choose import accumulator_of, bands_of, choose_tiling, misfit_of
from codegen.selection.cost_model import predict_microseconds
from codegen.selection.ranking import Ranking, ranking_of
from codegen.target.arch import has_clusters
from codegen.target.device_model import DeviceModel
from farm.jobs.model import BuildOptions, TilingChoice
from farm.tuning.record import TuningKey, TuningRecord, plain_arch


def tuned_spec(spec: LayerSpec) -> LayerSpec:
    """The spec under which records of a layer are filed: equal for layers with about equal times.

    It drops the epilogue, except a residual, which takes loads and registers, and a pool of overlapping windows, whose
    tiles overlap; and it merges the rows of a 1x1 kernel.
    """
    found = canonical(plain(spec))
    added = tuple(each for each in found.epilogue if isinstance(each, AddResidual))
    return replace(found, epilogue=added + (found.epilogue[-1:] if geometry_of(found).overlap else ()))


def key_of(
    arch: str, spec: LayerSpec, batch: int, nonzeros: NDArray[np.integer], accumulate: Accumulator, optimisation: int
) -> TuningKey:
    """Key of a layer with `nonzeros` per output channel [K]; `batch` in images, or in rows of a Linear."""
    spec = tuned_spec(spec)
    bands = bands_of(spec, batch, int(nonzeros.sum()))
    return TuningKey(plain_arch(arch), spec, *bands, accumulator_of(spec, accumulate, nonzeros), optimisation)


def own_and_shared(key: TuningKey) -> tuple[TuningKey, ...]:
    """The key and, for a layer that adds a residual, the key without it, whose record is the fallback."""
    bare = tuple(each for each in key.spec.epilogue if not isinstance(each, AddResidual))
    return (key,) if bare == key.spec.epilogue else (key, replace(key, spec=replace(key.spec, epilogue=bare)))


NEAR = 2.0
"""Largest ratio between a layer's density, or its batch, and that of a record used for it."""
CLOSE = 1.1
"""Largest ratio of predicted times at which a tiling that was fastest at a neighbouring batch is preferred to the cost
model's choice: the model's choices are about that far from the fastest."""


def related(records: Iterable[TuningRecord], key: TuningKey) -> list[tuple[TuningRecord, Tiling]]:
    """Records of a layer at any density and batch, with their tilings, nearest density first.

    Records of the layer without its residual come last. Each tiling gets the key's accumulator: a tiling measured with
    float32 accumulators also suits float16, but not the reverse.
    """
    specs = [each.spec for each in own_and_shared(key)]

    def distance(other: TuningKey) -> tuple[float, float, float]:
        apart = (other.density_band / key.density_band, other.batch_band / key.batch_band)
        return specs.index(other.spec), abs(math.log(apart[0])), abs(math.log(apart[1]))

    found = [
        (record, replace(record.tiling, accumulate=key.accumulate))
        for record in records
        if (record.key.arch, record.key.optimisation) == (key.arch, key.optimisation)
        and record.key.spec in specs
        and key.accumulate in (record.key.accumulate, "float16")
    ]
    return sorted(found, key=lambda each: distance(each[0].key))


@dataclass(frozen=True)
class TuningBook:
    """The best record per key, and the cost model for layers without one."""

    records: Mapping[TuningKey, TuningRecord]
    ranking: Ranking = ranking_of
    """Ranks a layer's tilings by the cost model."""

    @staticmethod
    def of(own: Iterable[TuningRecord], shipped: Iterable[TuningRecord] = ()) -> TuningBook:
        """The best record per key; the ledger's own records take precedence over the shipped ones."""
        best: dict[TuningKey, TuningRecord] = {}
        for records in (shipped, own):
            here: dict[TuningKey, TuningRecord] = {}
            for record in records:
                known = here.setdefault(record.key, record)
                if record.beats(known):
                    here[record.key] = record
            best |= here
        return TuningBook(best)

    def tilings(
        self, spec: LayerSpec, batch: int, nonzeros: NDArray[np.integer], options: BuildOptions
    ) -> list[tuple[Tiling, TilingChoice]]:
        """The tiling per architecture; `batch` in images or rows, `nonzeros` per output channel [K].

        A record of the nearest density (see NEAR), or of the layer without its residual, stands in for a missing one;
        one of a neighbouring batch does if it is about as fast, by prediction, as the cost model's choice. If a
        record's tiling does not fit the weights, the cost model chooses, and the choice says why. Raises TilingError
        if no tiling fits.
        """
        found: list[tuple[Tiling, TilingChoice]] = []
        of_model: dict[tuple[bool, DeviceModel], Tiling] = {}
        for arch in options.archs:
            tuned = self._find(arch, spec, batch, nonzeros, options)
            note = ""
            if tuned is not None:
                record, tiling = tuned
                note = misfit_of(
                    spec, tiling, nonzeros, options.device(arch), code_limit_bytes=options.code_limit_bytes
                )
                if not note:
                    bands = bands_of(spec, batch, int(nonzeros.sum()))
                    times = _measured(record, bands) if tiling == record.tiling else ()
                    found.append((tiling, TilingChoice(arch, record.gpu, measured=times)))
                    continue
                note = f"the record of {record.gpu} was not used: {note}"
            kind = clusters, device = has_clusters(arch), options.device(arch)
            if kind not in of_model:
                of_model[kind] = choose_tiling(
                    spec,
                    batch,
                    nonzeros,
                    form=options.form,
                    accumulate=options.accumulate,
                    code_limit_bytes=options.code_limit_bytes,
                    clusters=clusters,
                    device=device,
                    ranking=self.ranking,
                )
            chosen = of_model[kind], TilingChoice(arch, note=note)
            if tuned is None and (near := self._of_near_batch(arch, spec, batch, nonzeros, options, chosen[0])):
                chosen = near[1], TilingChoice(arch, near[0].gpu)
            found.append(chosen)
        return found

    def _find(
        self, arch: str, spec: LayerSpec, batch: int, nonzeros: NDArray[np.integer], options: BuildOptions
    ) -> tuple[TuningRecord, Tiling] | None:
        if not options.tuning or options.form != "rolled" or not self.records:
            return None
        key = key_of(arch, spec, batch, nonzeros, options.accumulate, options.optimisation)
        if record := self.records.get(key):
            return record, record.tiling
        return next((each for each in self._near(key) if each[0].key.batch_band == key.batch_band), None)

    def _of_near_batch(
        self,
        arch: str,
        spec: LayerSpec,
        batch: int,
        nonzeros: NDArray[np.integer],
        options: BuildOptions,
        choice: Tiling,
    ) -> tuple[TuningRecord, Tiling] | None:
        """The record of a neighbouring batch that is fastest by prediction, if it is CLOSE to the model's `choice`."""
        if not options.tuning or options.form != "rolled" or not self.records:
            return None
        device, density = options.device(arch), float(nonzeros.sum()) / spec.weights_count

        def predicted(tiling: Tiling) -> float:
            return predict_microseconds(tiled(spec, tiling), batch, density, device=device)

        key = key_of(arch, spec, batch, nonzeros, options.accumulate, options.optimisation)
        fitting = [
            (record, tiling)
            for record, tiling in self._near(key)
            if not misfit_of(spec, tiling, nonzeros, device, code_limit_bytes=options.code_limit_bytes)
        ]
        best = min(fitting, key=lambda each: predicted(each[1]), default=None)
        return best if best is not None and predicted(best[1]) <= CLOSE * predicted(choice) else None

    def _near(self, key: TuningKey) -> Iterator[tuple[TuningRecord, Tiling]]:
        """Records of a layer at a near density and batch, nearest density first."""
        for record, tiling in related(self.records.values(), key):
            ratios = (record.key.density_band / key.density_band, record.key.batch_band / key.batch_band)
            if all(1 / NEAR <= ratio <= NEAR for ratio in ratios):
                yield record, tiling


def _measured(record: TuningRecord, bands: tuple[int, float]) -> tuple[tuple[int, float], ...]:
    """The batch that these bands are named after and the record's cold time, if it is a record of these bands."""
    if record.cold_microseconds is None or bands != (record.key.batch_band, record.key.density_band):
        return ()
    return ((bands[0], record.cold_microseconds),)


NO_RECORDS = TuningBook({})
