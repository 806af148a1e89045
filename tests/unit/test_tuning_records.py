"""Tuning records: there and back, as files, and which of them a job uses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator, FormatChecker

from codegen.ir.layer_spec import AddResidual, Clip, Linear
from codegen.ir.tiling import Tiling
from codegen.kernels import tiled
from codegen.selection.choose import bands_of, choose_tiling
from codegen.selection.cost_model import predict_microseconds
from codegen.selection.feasibility import block_fits, comes_out_even
from farm.errors import UsageError
from farm.jobs.model import BuildOptions, NewJob, TilingChoice
from farm.jobs.submission import new_job
from farm.store.memory import MemoryStore
from farm.tuning.book import TuningBook, own_and_shared, related, tuned_spec
from farm.tuning.files import SHIPPED, read_records, shipped_records, text_of
from farm.tuning.record import TuningRecord, record_of_json
from tests.benchmarks.cost_model.fit import layers_of
from tests.benchmarks.cost_model.points import MORE_POINTS, read_points
from tests.samples import SMALL, checkpoint, layer
from tests.tuning_samples import GPU, other_tiling, record

LAYER = layer()
BY_MODEL = choose_tiling(SMALL, 64, LAYER.weights.nonzeros_per_output)
TUNED = other_tiling(BY_MODEL)
SCHEMA = json.loads(files("farm.tuning").joinpath("tuning.schema.json").read_text())


def submitted(*records: TuningRecord, options: BuildOptions | None = None, own: int | None = None) -> NewJob:
    """A job of one layer; the first `own` records are the ledger's, the others ship with the project."""
    own = len(records) if own is None else own
    return new_job(
        checkpoint(LAYER),
        options or BuildOptions(("sm_80", "sm_90")),
        namespace="test",
        name="net",
        store=MemoryStore(),
        book=TuningBook.of(records[:own], records[own:]),
    )


def test_a_record_comes_back_from_json_as_it_was() -> None:
    for each in (record(TUNED), replace(record(TUNED), cold_microseconds=12.0, model_cold_microseconds=14.0)):
        assert record_of_json(json.loads(json.dumps(each.to_json()))) == each


def check_lines(text: str) -> int:
    """Validates every line of a file against the schema; gives how many records it has."""
    lines = [json.loads(line) for line in text.splitlines()]
    for number, line in enumerate(lines):
        schema = {**SCHEMA, "oneOf": [{"$ref": "#/$defs/record" if number else "#/$defs/header"}]}
        Draft202012Validator(schema, format_checker=FormatChecker()).validate(line)
    return len(lines) - 1


def test_an_export_keeps_to_its_schema_and_is_read_back() -> None:
    cold = replace(record(TUNED), cold_microseconds=12.0, model_cold_microseconds=14.0)
    records = (cold, record(BY_MODEL, arch="sm_80"))
    text = text_of(records)
    assert check_lines(text) == 2
    assert set(read_records(text, "file")) == set(records)


def test_the_order_of_an_export_depends_on_the_records_alone() -> None:
    records = (record(TUNED), record(BY_MODEL, arch="sm_80"))
    assert text_of(records) == text_of(records[::-1])


def test_the_records_that_ship_keep_to_the_schema_and_can_be_read() -> None:
    counts = [check_lines(files("farm.tuning").joinpath(name).read_text()) for name in SHIPPED]
    assert len(shipped_records()) == sum(counts)


def test_the_records_of_networks_that_ship_were_chosen_as_in_a_network() -> None:
    name = "h200_networks.jsonl"
    records = read_records(files("farm.tuning").joinpath(name).read_text(), name)
    assert all(record.cold_microseconds is not None and record.slower >= 1.0 for record in records)


def test_no_record_keeps_weights_in_code_that_are_read_sooner_from_a_table() -> None:
    for each in shipped_records():
        spec, batch, density = each.key.spec, each.key.batch_band, each.key.density_band
        if not isinstance(spec, Linear) or each.tiling.reads_table:
            continue
        nonzeros = np.full(spec.outputs, round(density * spec.inputs))
        first = choose_tiling(spec, batch, nonzeros, accumulate=each.key.accumulate, clusters=True)
        took = each.cold_microseconds or each.microseconds
        assert not first.reads_table or took < predict_microseconds(tiled(spec, first), batch, density), each


def test_float16_layers_of_resnet50_and_vgg16_at_batch_64_have_records_near_the_fastest_tiling_measured() -> None:
    records = {(each.key.spec, each.key.batch_band, each.key.density_band): each for each in shipped_records()}
    points = [each for each in read_points(MORE_POINTS) if each.spec.data_type == "float16" and each.images == 64]
    layers = layers_of(each for each in points if each.network in ("resnet50", "vgg16") and each.registers)
    assert len(layers) >= 55
    slower = []
    for measured in layers:
        point = measured.points[0]
        nonzeros = round(point.density * point.spec.weights_count)
        bands = bands_of(point.spec, 64, nonzeros)
        shared = tuned_spec(replace(point.spec, epilogue=()))  # of those with a residual, but for new ones
        record = records.get((tuned_spec(point.spec), *bands)) or records[(shared, *bands)]
        times = {each.tiling: each.cold_microseconds for each in measured.points}
        # A record may have a tiling of a later search.
        slower.append(times.get(record.tiling, record.cold_microseconds or math.inf) / min(times.values()))
    assert np.mean(np.array(slower) <= 1.05) >= 0.9


def changed(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda each: each.update(values)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda each: each.pop("gpu"), "lacks gpu"),
        (changed(colour="red"), "colour is not known"),
        (changed(microseconds=0), "microseconds 0 is not a number above 0"),
        (changed(microseconds=float("nan")), "microseconds nan is not"),
        (changed(microseconds=True), "microseconds True is not"),
        (changed(tried=-1), "tried -1 is not"),
        (changed(batch_band="64"), "batch_band '64' is not"),
        (changed(tried=2**31), "tried 2147483648 is not"),
        (changed(microseconds=10**400), "is not a number above 0"),
        (changed(density_band=1.5), "density_band 1.5 is above 1"),
        (changed(optimisation=4), "optimisation 4 is above 3"),
        (changed(arch="sm_90a"), "arch 'sm_90a' does not match"),
        (changed(cubins=["ab"]), "cubin 'ab' does not match"),
        (changed(gpu=""), "gpu '' is not a text"),
        (changed(accumulate="float8"), "accumulate 'float8'"),
        (changed(cubins="ab"), "cubins 'ab' are not"),
        (changed(measured_at="yesterday"), "measured_at 'yesterday'"),
        (changed(measured_at="2026-01-02T03:04:05"), "is not a time with its zone"),
        (changed(tiling={"tile_width": 8}), "is not one of this version"),
        (changed(tiling={**TUNED.to_json(), "rows": 0}), "cannot be chosen"),
        (changed(tiling={**TUNED.to_json(), "form": "full"}), "cannot be chosen"),
        (changed(tiling={**TUNED.to_json(), "cluster": 16}), "cannot be chosen"),
        (changed(tiling={**TUNED.to_json(), "images": 10**20}), "cannot be chosen"),
        (changed(tiling={**TUNED.to_json(), "chunk_channels": 10**9}), "cannot be chosen"),
        (changed(tiling={**TUNED.to_json(), "accumulate": "float16"}), "adds up in another type"),
        (changed(tiling=None), "is not one of this version"),
        (changed(spec={"operator": "pool"}), "is not one of this version"),
        (changed(spec=[]), "is not one of this version"),
        (changed(spec={**SMALL.to_json(), "channels": -3}), "no layer has its spec"),
        (changed(spec={**SMALL.to_json(), "channels": "3"}), "no layer has its spec"),
        (changed(spec=replace(SMALL, epilogue=(Clip(low=0.0),)).to_json()), "no layer has its spec"),
    ],
)
def test_a_bad_record_is_refused_in_words_with_its_number(
    change: Callable[[dict[str, Any]], object], says: str
) -> None:
    lines = text_of([record(TUNED, arch="sm_80"), record(TUNED)]).splitlines()
    bad = json.loads(lines[2])
    change(bad)
    with pytest.raises(UsageError, match=rf"records\.jsonl: line 3 is invalid, .*{says}.*nothing was imported"):
        read_records("\n".join([*lines[:2], json.dumps(bad)]), "records.jsonl")


@pytest.mark.parametrize("line", ['{"gpu"', 100_000 * "["])
def test_a_line_that_is_no_json_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(UsageError, match=r"records\.jsonl: line 2 is not JSON"):
        read_records('{"schema_version": 1}\n' + line, "records.jsonl")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"records": 3}',
        '{"schema_version": 9}',
        '{"schema_version": 1, "records": []}',  # one document, as before JSON lines
        '{\n  "schema_version": 1,\n  "records": []\n}\n',
    ],
)
def test_a_file_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"records\.jsonl.*farm"):
        read_records(text, "records.jsonl")


def test_without_records_a_layer_is_one_build_by_the_model() -> None:
    [build] = submitted().builds
    assert (build.tiling, build.choices) == (BY_MODEL, ())
    assert build.archs(BuildOptions(("sm_80", "sm_90"))) == ("sm_80", "sm_90")


def test_a_record_for_one_architecture_splits_the_layer() -> None:
    first, second = submitted(record(TUNED)).builds
    assert (first.tiling, first.choices) == (BY_MODEL, (TilingChoice("sm_80"),))
    assert (second.tiling, second.choices) == (TUNED, (TilingChoice("sm_90", GPU),))
    assert first.position == second.position == 0


def test_a_record_of_the_tiling_that_the_model_chooses_splits_nothing() -> None:
    [build] = submitted(record(BY_MODEL)).builds
    assert build.choices == (TilingChoice("sm_80"), TilingChoice("sm_90", GPU))


def test_the_fastest_record_of_the_ledger_counts_whatever_ships() -> None:
    slow = replace(record(BY_MODEL, gpu="NVIDIA Slow"), microseconds=11.0)
    shipped = record(BY_MODEL, gpu="NVIDIA Shipped", microseconds=1.0)
    options = BuildOptions(("sm_90",))
    [build] = submitted(slow, record(TUNED), shipped, options=options, own=2).builds
    assert (build.tiling, build.choices) == (TUNED, (TilingChoice("sm_90", GPU),))
    [build] = submitted(shipped, options=options, own=0).builds
    assert build.choices == (TilingChoice("sm_90", "NVIDIA Shipped"),)


def test_a_record_is_for_layers_with_any_activation() -> None:
    with_relu = replace(LAYER, spec=replace(SMALL, epilogue=(Clip(low=0.0),)))
    assert record(TUNED, with_relu).key == record(TUNED).key


def test_an_architecture_with_a_letter_takes_the_records_of_its_gpu() -> None:
    [build] = submitted(record(TUNED), options=BuildOptions(("sm_90a",))).builds
    assert build.tiling == TUNED


@pytest.mark.parametrize(
    "options",
    [
        BuildOptions(("sm_90",), tuning=False),
        BuildOptions(("sm_90",), batches=(1,)),
        BuildOptions(("sm_90",), optimisation=1),
        BuildOptions(("sm_80",)),
        BuildOptions(("sm_90",), form="full"),
    ],
)
def test_a_record_is_for_its_own_kind_of_job_only(options: BuildOptions) -> None:
    [build] = submitted(record(TUNED), options=options).builds
    assert build.choices == ()


@pytest.mark.parametrize(("sparsity", "found"), [(0.9, TUNED), (0.95, TUNED), (0.8, TUNED), (0.98, None), (0.5, None)])
def test_a_layer_without_a_record_takes_that_of_at_most_twice_or_half_its_density(
    sparsity: float, found: Tiling | None
) -> None:
    tuned = record(TUNED, layer(sparsity=0.9))
    pruned = layer(sparsity=sparsity)
    book = TuningBook.of([tuned])
    nonzeros = pruned.weights.nonzeros_per_output
    [(tiling, choice)] = book.tilings(SMALL, 64, nonzeros, BuildOptions(("sm_90",)))
    assert (tiling, choice.gpu) == ((found, GPU) if found else (choose_tiling(SMALL, 64, nonzeros, clusters=True), ""))


def test_the_record_of_the_nearest_density_counts() -> None:
    near, far = record(TUNED, layer(sparsity=0.9)), record(other_tiling(TUNED), layer(sparsity=0.85))
    nonzeros = layer(sparsity=0.95).weights.nonzeros_per_output
    for records in ([near, far], [far, near]):
        [(tiling, _)] = TuningBook.of(records).tilings(SMALL, 64, nonzeros, BuildOptions(("sm_90",)))
        assert tiling == TUNED


@pytest.mark.parametrize(("ratio", "batch", "taken"), [(1.05, 32, True), (1.05, 16, False), (1.2, 32, False)])
def test_a_record_of_the_neighbouring_batch_is_taken_if_it_is_about_as_fast_by_prediction(
    ratio: float, batch: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "farm.tuning.book.predict_microseconds", lambda of, *_, **__: ratio if of.tiling == TUNED else 1.0
    )
    nonzeros = LAYER.weights.nonzeros_per_output
    [(tiling, choice)] = TuningBook.of([record(TUNED)]).tilings(SMALL, batch, nonzeros, BuildOptions(("sm_90",)))
    by_model = choose_tiling(SMALL, batch, nonzeros, clusters=True)
    assert by_model != TUNED
    assert (tiling, choice.gpu) == ((TUNED, GPU) if taken else (by_model, ""))


def test_sums_in_float16_take_a_record_of_sums_in_float32_and_not_the_other_way() -> None:
    exact = record(TUNED)
    packed = replace(exact.key, accumulate="float16", density_band=0.05)
    [(found, tiling)] = related([exact], packed)
    assert (found, tiling) == (exact, replace(TUNED, accumulate="float16"))
    assert related([replace(exact, key=packed, tiling=tiling)], exact.key) == []


def test_a_layer_with_a_residual_takes_its_own_record_and_without_one_that_of_the_layer_alone() -> None:
    added = layer(spec=replace(SMALL, epilogue=(AddResidual(), Clip(low=0.0))))
    nonzeros = added.weights.nonzeros_per_output
    other = other_tiling(TUNED)
    shared, own = record(TUNED), record(other, added, microseconds=99.0)
    sparser = replace(own, key=replace(own.key, density_band=own.key.density_band / 2))
    for records, found in (([shared], TUNED), ([own, shared], other), ([shared, sparser], other), ([own], other)):
        [(tiling, choice)] = TuningBook.of(records).tilings(added.spec, 64, nonzeros, BuildOptions(("sm_90",)))
        assert (tiling, choice.gpu) == (found, GPU)


def test_a_layer_without_a_residual_takes_no_record_of_one_with_it() -> None:
    own = record(TUNED, layer(spec=replace(SMALL, epilogue=(AddResidual(),))))
    [build] = submitted(own, options=BuildOptions(("sm_90",))).builds
    assert build.choices == ()
    assert own_and_shared(record(TUNED).key) == (record(TUNED).key,)
    assert own_and_shared(own.key) == (own.key, record(TUNED).key)


@pytest.mark.parametrize("stale", [replace(TUNED, rows=4000), replace(TUNED, tile_width=4096)])
def test_a_record_that_no_longer_fits_leaves_the_model_and_says_so(stale: Tiling) -> None:
    [build] = submitted(record(stale), options=BuildOptions(("sm_90",))).builds
    [choice] = build.choices
    assert (build.tiling, choice.gpu) == (BY_MODEL, "")
    assert choice.note.startswith(f"the record of {GPU} was not used: it needs more threads")


def test_a_record_whose_code_would_be_too_large_leaves_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.tuning.book.misfit_of", lambda *_, **__: "the code would be 17 MB")
    [build] = submitted(record(TUNED), options=BuildOptions(("sm_90",))).builds
    assert build.tiling == BY_MODEL
    assert "17 MB" in build.choices[0].note


def test_options_say_whether_records_are_used_and_old_ones_mean_yes() -> None:
    options = BuildOptions(("sm_90",), tuning=False)
    assert BuildOptions.from_json(options.to_json()) == options
    old = {name: value for name, value in options.to_json().items() if name != "tuning"}
    assert BuildOptions.from_json(old).tuning
    assert submitted(options=options).request_digest != submitted(options=BuildOptions(("sm_90",))).request_digest


def test_blocks_of_every_tiling_that_ships_fit() -> None:
    for each in shipped_records():
        layer_of_record = tiled(each.key.spec, each.tiling)
        assert comes_out_even(layer_of_record), each
        assert block_fits(layer_of_record, measured=True), each
