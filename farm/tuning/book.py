"""The tilings that a job's layers are given: of the best record for each architecture, else of the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codegen.ir.layer_spec import AddResidual, LayerSpec, plain
from codegen.ir.tiling import Accumulator, Tiling
from codegen.kernels import canonical
from codegen.kernels.geometry import geometry_of
from codegen.selection.choose import accumulator_of, bands_of, choose_tiling, misfit_of
from codegen.selection.ranking import Ranking, ranking_of
from codegen.target.arch import has_clusters
from farm.jobs.model import BuildOptions, TilingChoice
from farm.tuning.record import TuningKey, TuningRecord, plain_arch


def tuned_spec(spec: LayerSpec) -> LayerSpec:
    """What records of a layer are found by: the epilogue hardly matters, nor where the rows of a 1x1 kernel end.

    A residual does, which is loaded and takes registers, and a pool whose windows overlap: then tiles do too.
    """
    found = canonical(plain(spec))
    added = tuple(each for each in found.epilogue if isinstance(each, AddResidual))
    return replace(found, epilogue=added + (found.epilogue[-1:] if geometry_of(found).overlap else ()))


def key_of(
    arch: str,
    spec: LayerSpec,
    batch: int,
    nonzeros: NDArray[np.integer],
    accumulate: Accumulator,
    optimisation: int,
) -> TuningKey:
    """The key of a layer with these non-zeros per kernel [K]; `batch` in images, or in rows of a Linear."""
    spec = tuned_spec(spec)
    bands = bands_of(spec, batch, int(nonzeros.sum()))
    return TuningKey(plain_arch(arch), spec, *bands, accumulator_of(spec, accumulate, nonzeros), optimisation)


def own_and_shared(key: TuningKey) -> tuple[TuningKey, ...]:
    """The key, and for a layer that adds a residual that of the layer without: its record does where there is none."""
    bare = tuple(each for each in key.spec.epilogue if not isinstance(each, AddResidual))
    return (key,) if bare == key.spec.epilogue else (key, replace(key, spec=replace(key.spec, epilogue=bare)))


NEAR = 2.0
"""Without a record of a layer's own density one of at most so many times it, or so many times less, does."""


def related(records: Iterable[TuningRecord], key: TuningKey) -> list[tuple[TuningRecord, Tiling]]:
    """Records of the same layer for any density, batch and sums, the nearest density first, and their tilings.

    Those of the layer without its residual come last. A tiling adds up as the key has it: what does with sums in
    float32 does with sums in float16, not the other way.
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
    """The best record of each key, and for layers without one the cost model."""

    records: Mapping[TuningKey, TuningRecord]
    ranking: Ranking = ranking_of
    """Who puts a layer's tilings in order by the model."""

    @staticmethod
    def of(own: Iterable[TuningRecord], shipped: Iterable[TuningRecord] = ()) -> TuningBook:
        """The ledger's own records come before those that ship with the project; of each, the best counts."""
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
        """The tiling for each architecture; `batch` in images or rows, `nonzeros` per output channel [K].

        Without a record of the layer's density that of the nearest one counts (see NEAR), and without one of a layer
        with its residual that of the layer alone. If a record's tiling does not fit these weights, the cost model
        chooses, and the choice says why. Raises TilingError if no tiling fits.
        """
        found: list[tuple[Tiling, TilingChoice]] = []
        of_model: dict[bool, Tiling] = {}
        for arch in options.archs:
            tuned = self._find(arch, spec, batch, nonzeros, options)
            note = ""
            if tuned is not None:
                record, tiling = tuned
                note = misfit_of(spec, tiling, nonzeros, code_limit_bytes=options.code_limit_bytes)
                if not note:
                    found.append((tiling, TilingChoice(arch, record.gpu)))
                    continue
                note = f"the record of {record.gpu} was not used: {note}"
            clusters = has_clusters(arch)
            if clusters not in of_model:
                of_model[clusters] = choose_tiling(
                    spec,
                    batch,
                    nonzeros,
                    form=options.form,
                    accumulate=options.accumulate,
                    code_limit_bytes=options.code_limit_bytes,
                    clusters=clusters,
                    ranking=self.ranking,
                )
            found.append((of_model[clusters], TilingChoice(arch, note=note)))
        return found

    def _find(
        self, arch: str, spec: LayerSpec, batch: int, nonzeros: NDArray[np.integer], options: BuildOptions
    ) -> tuple[TuningRecord, Tiling] | None:
        if not options.tuning or options.form != "rolled" or not self.records:
            return None
        key = key_of(arch, spec, batch, nonzeros, options.accumulate, options.optimisation)
        if record := self.records.get(key):
            return record, record.tiling
        near = (
            (record, tiling)
            for record, tiling in related(self.records.values(), key)
            if record.key.batch_band == key.batch_band
            and 1 / NEAR <= record.key.density_band / key.density_band <= NEAR
        )
        return next(near, None)


NO_RECORDS = TuningBook({})
