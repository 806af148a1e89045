"""Makes jobs of checkpoints: stores the weights, chooses tilings, and prepares the builds for the ledger."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from codegen.errors import TilingError
from codegen.ir.checkpoint import Checkpoint, Layer, Weights
from codegen.ir.layer_spec import LayerSpec, SkippedLayer
from codegen.ir.tiling import Part, Tiling
from codegen.keys import digest_fields
from codegen.sass.value_patch import mask_digest
from codegen.selection.choose import choose_parts, divisible
from codegen.selection.code_size import fits_one_cubin
from codegen.selection.early_start import with_early_start
from farm.errors import NothingToCompileError, UsageError
from farm.jobs.dense_choice import LayerTimes, chooses, left_dense, times_of, whole_left_dense
from farm.jobs.dense_choice import skipped as skipped_dense
from farm.jobs.model import Build, BuildOptions, Job, NewJob, TilingChoice
from farm.store.background import BlobWriter
from farm.tuning.book import NO_RECORDS, TuningBook
from farm.tuning.pools import pooled_where_faster

IsDirect = Callable[[LayerSpec, Tiling, str], bool]
"""Whether a layer is assembled directly for an architecture."""
NAMED = 4
"""Layers or files named in a warning."""


@dataclass(frozen=True)
class Submission:
    """A group of jobs submitted by one call."""

    id: str
    """Id of the submission that the ledger has: an earlier one if no job is new."""
    jobs: tuple[Job, ...]
    """One job for each checkpoint, in their order; it may be an earlier unfinished job with the same request."""
    warnings: tuple[str, ...] = ()
    """Warnings about layers that compile."""
    is_new: bool = True
    """Whether any job is new."""


def new_id() -> str:
    """A new unique id of twelve hex digits."""
    return uuid.uuid4().hex[:12]


def new_job(
    checkpoint: Checkpoint,
    options: BuildOptions,
    *,
    namespace: str,
    name: str,
    store: BlobWriter | None,
    book: TuningBook = NO_RECORDS,
    is_direct: IsDirect = lambda *_: False,
) -> NewJob:
    """Stores the weights and the network around the layers, and returns the job for the ledger.

    Tilings come from the book's records, else from the cost model. `is_direct` tells which layers are assembled without
    ptxas. Without a store only the weights' digests are computed, for a job that will not run. A layer that no tiling
    fits is skipped. Raises UsageError if no layer is left, or with `strict` if any is skipped.
    """
    job_id = new_id()
    name = name.encode(errors="replace").decode()  # that of a file may not be UTF-8
    skipped = list(checkpoint.skipped)
    kept: list[tuple[Layer, _Division]] = []
    times: list[tuple[tuple[LayerTimes, ...], bool]] = []
    divided: dict[tuple[LayerSpec, Weights, int], _Division] = {}
    layers = [pooled_where_faster(layer, book, options) for layer in checkpoint.layers]
    for layer in layers:
        key = (layer.spec, layer.weights, layer.likely_rows)
        try:
            if key not in divided:  # hundreds of layers may share their weights
                divided[key] = _divided(layer, options, store, book, is_direct)
            found = divided[key]
            times.append((found.times, found.left is not None))
            if found.left is not None:
                skipped.append(replace(found.left, name=layer.name))
            else:
                kept.append((layer, found))
        except TilingError as error:
            skipped.append(_skipped(layer, str(error)))
    if kept and (reason := whole_left_dense(times, options)):
        skipped += [skipped_dense(layer, reason) for layer, _ in kept]
        kept = []
    builds = [build for position, (layer, each) in enumerate(kept) for build in _builds(job_id, position, layer, each)]
    _check(checkpoint, options, builds, skipped)
    network = None
    if checkpoint.residual_graph is not None and store is not None:
        compiled = {build.layer for build in builds}
        rest = checkpoint.residual_graph.with_layers([layer for layer in layers if layer.name in compiled])
        network = store.put(rest)
    request = {
        "namespace": namespace,
        "name": name,
        "model": checkpoint.digest,
        "options": json.dumps(options.to_json()),
        "network": network or "",
    }
    return NewJob(
        id=job_id,
        name=name,
        model=str(Path(checkpoint.path).absolute()),
        model_digest=checkpoint.digest,
        request_digest=digest_fields(request),
        options=options,
        builds=tuple(builds),
        skipped=tuple(skipped),
        network=network,
    )


@dataclass(frozen=True)
class _Division:
    """Properties shared by layers with the same weights."""

    weights: str
    """The weights' digest."""
    nonzeros: int
    mask: str
    """The mask's digest."""
    tilings: tuple[tuple[Tiling, tuple[Part, ...], tuple[str, ...], tuple[TilingChoice, ...]], ...]
    """For each tiling, mostly one for all architectures and batch sizes: its parts, the architectures for which the
    layer is whole, and the origins of the choice."""
    times: tuple[LayerTimes, ...] = ()
    """Predicted times, if they decide what is left dense."""
    left: SkippedLayer | None = None
    """The layer if it is left dense; then it has no tilings."""


def _divided(
    layer: Layer, options: BuildOptions, store: BlobWriter | None, book: TuningBook, is_direct: IsDirect
) -> _Division:
    """Chooses the tilings, and stores the weights if there is a store and the layer is compiled. Raises TilingError."""
    nonzeros = layer.weights.nonzeros_per_output
    chosen: list[tuple[int, Tiling, TilingChoice]] = []
    for batch in options.batches:
        for tiling, choice in book.tilings(layer.spec, batch * layer.likely_rows, nonzeros, options):
            fast = tiling if is_direct(layer.spec, tiling, choice.arch) else divisible(layer.spec, tiling, nonzeros)
            begun = with_early_start(layer.spec, fast, batch * layer.likely_rows, options.device(choice.arch))
            chosen.append((batch, begun, choice if fast == tiling else replace(choice, measured=())))
    count, mask = layer.weights.nonzeros, mask_digest(layer.spec, layer.weights)
    times = tuple(times_of(layer, count, chosen, options)) if chooses(options) else ()
    if left := left_dense(layer, count, times, options):
        return _Division("", count, mask, (), times, left)
    by_tiling = _merged(chosen)
    tilings = []
    for tiling, choices in by_tiling:
        parts = choose_parts(layer.spec, tiling, nonzeros)
        cut = len(parts) > 1 and fits_one_cubin(layer.spec, tiling, nonzeros)
        whole = tuple(each.arch for each in choices if cut and is_direct(layer.spec, tiling, each.arch))
        told = len(by_tiling) > 1 or any(each.gpu or each.note for each in choices)
        tilings.append((tiling, parts, whole, tuple(choices) if told else ()))
    weights = layer.weights.digest if store is None else store.put(layer.weights.to_bytes())
    return _Division(weights, count, mask, tuple(tilings), times)


def _merged(chosen: Sequence[tuple[int, Tiling, TilingChoice]]) -> list[tuple[Tiling, list[TilingChoice]]]:
    """The architectures and batch sizes of each tiling, given one by one with ascending batch sizes.

    A tiling that is best again at a larger batch size, after another one, is listed again.
    """
    by_arch: dict[str, list[tuple[int, Tiling, TilingChoice]]] = {}
    for each in chosen:
        by_arch.setdefault(each[2].arch, []).append(each)
    merged: dict[tuple[Tiling, int], list[TilingChoice]] = {}
    for arch, of_arch in by_arch.items():
        runs: Counter[Tiling] = Counter()
        for tiling, run in groupby(of_arch, key=lambda each: each[1]):
            same = list(run)
            gpu = next((choice.gpu for _, _, choice in same if choice.gpu), "")
            note = "; ".join(dict.fromkeys(choice.note for _, _, choice in same if choice.note))
            batches = () if len(same) == len(of_arch) else tuple(batch for batch, _, _ in same)
            times = dict.fromkeys(each for _, _, choice in same if choice.gpu == gpu for each in choice.measured)
            merged.setdefault((tiling, runs[tiling]), []).append(TilingChoice(arch, gpu, note, batches, tuple(times)))
            runs[tiling] += 1
    return [(tiling, choices) for (tiling, _), choices in merged.items()]


def _builds(job: str, position: int, layer: Layer, division: _Division) -> list[Build]:
    """The builds of a layer: one for each tiling."""
    return [
        Build(
            id=0,
            job=job,
            position=position,
            layer=layer.name,
            input=layer.input,
            output=layer.output,
            spec=layer.spec,
            tiling=tiling,
            weights=division.weights,
            nonzeros=division.nonzeros,
            mask=division.mask,
            parts=parts,
            residual=layer.residual,
            gate=layer.gate,
            rows=layer.rows,
            folded=layer.folded,
            choices=choices,
            whole=whole,
        )
        for tiling, parts, whole, choices in division.tilings
    ]


def _skipped(layer: Layer, reason: str) -> SkippedLayer:
    spec = layer.spec
    multiply_adds = spec.multiply_adds * layer.likely_rows
    return SkippedLayer(layer.name, layer.operator, reason, spec.weights_count, multiply_adds, "too large")


def _check(
    checkpoint: Checkpoint, options: BuildOptions, builds: Sequence[Build], skipped: Sequence[SkippedLayer]
) -> None:
    if skipped and (options.strict or not builds):
        first = skipped[0]
        also = f", and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        named = f"{first.name} ({first.operator}): {first.reason}{also}"
        if options.strict:
            raise UsageError(f"{checkpoint.path}: --strict allows no skipped layer: {named}")
        raise NothingToCompileError(f"{checkpoint.path}: no layer can be compiled: {named}")


def empty_layers_warning(builds: Iterable[Build]) -> str:
    """A warning that names the layers without non-zero weights; empty if there are none."""
    empty = list(dict.fromkeys(build.layer for build in builds if not build.nonzeros))
    if not empty:
        return ""
    have = "1 layer has" if len(empty) == 1 else f"{len(empty)} layers have"
    return f"{have} only zeros, the bias alone remains: {_first(empty)}. Check the pruning."


def fixed_images_warning(checkpoint: Checkpoint, batches: Sequence[int]) -> str:
    """A warning of batch sizes that a network never gets, as its inputs fix the batch; empty if there are none."""
    fixed = checkpoint.fixed_images
    never = [batch for batch in batches if fixed is not None and batch != fixed]
    if not never:
        return ""
    return (
        f"its inputs fix the batch at {fixed}: kernels for {' and '.join(map(str, never))} never run in this network. "
        f"Give --batch {fixed}, or leave the batch open, in the export and in --input-shape (NAME:N,...)."
    )


def joined_notes(notes: Iterable[tuple[str, str]]) -> list[str]:
    """Each note on files once, after the first files that it is about; `notes` are pairs of file and note."""
    files: dict[str, list[str]] = {}
    for path, note in notes:
        files.setdefault(note, []).append(path)
    return [f"{_first(paths)}: {note}" for note, paths in files.items()]


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
