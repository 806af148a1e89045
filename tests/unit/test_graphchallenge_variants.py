"""The fastest correct variant counts; wrong and failing variants; the table of results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from cli.main import run
from cli.output.graphchallenge import challenge_tables, progress_line
from codegen.errors import ToolError
from codegen.toolchain.ptxas import Cubin
from farm.bench.graphchallenge.benchmark import ChallengeSession, defect
from farm.bench.graphchallenge.kernels import PIPELINED_LAYERS, listed_tiling
from farm.bench.graphchallenge.network import ChallengeNetwork, VariantRun, launch_plans, outcome_of
from farm.bench.graphchallenge.persistent_layers import PersistentLayout
from farm.bench.graphchallenge.pipelined_batches import PipelinedLayout
from farm.bench.layers.results import CHALLENGE_KIND, Measurement, Results, write_results
from farm.cuda.measure.kernels import BuiltLayer
from tests.unit.small_challenge import NEURONS, challenge
from tests.unit.test_cli_output import shown

RIGHT = VariantRun(100.0, 3, True, 1e-7)


class Gpu:
    """A GPU as far as `best` uses one."""

    def __init__(self, net: ChallengeNetwork) -> None:
        self.reference = outcome_of(net)


def best(*runs: VariantRun | Exception) -> Measurement:
    net = challenge()

    def run_of(given: VariantRun | Exception) -> Callable[[], VariantRun]:
        def run() -> VariantRun:
            if isinstance(given, Exception):
                raise given
            return given

        return run

    session = ChallengeSession(net, net.checkpoint(), cast("Any", Gpu(net)))
    return session.best("index", [(f"variant {i}", run_of(each)) for i, each in enumerate(runs)])


def test_the_fastest_variant_counts() -> None:
    found = best(RIGHT, VariantRun(50.0, 3, True, 1e-7), VariantRun(70.0, 3, True, 1e-7))
    assert (found.microseconds, found.note, found.facts["variants"]) == (50.0, "variant 1", 3)


def test_a_variant_that_cannot_run_does_not_end_the_others() -> None:
    assert best(RuntimeError("out of memory"), RIGHT).microseconds == 100.0
    failed = best(RuntimeError("out of memory"))
    assert (failed.microseconds, failed.reason) == (None, "variant 0: out of memory")
    assert best().reason == "no variant fits"


def test_a_failed_persistent_kernel_does_not_end_the_others() -> None:
    class Broken:
        def result(self) -> object:
            raise ToolError("ptxas: no", command="ptxas")

    net = challenge()
    session = ChallengeSession(net, net.checkpoint(), cast("Any", Gpu(net)))
    broken = session.persistent_variants((PersistentLayout(16, 512, 2, 2), cast("Any", Broken())))
    assert session.best("generated", itertools.chain([("variant 0", lambda: RIGHT)], broken)).microseconds == 100.0
    again = session.persistent_variants((PersistentLayout(16, 512, 2, 2), cast("Any", Broken())))
    assert session.best("generated", again).reason == "ptxas: no"


def test_persistent_variants_combine_layer_kernels_and_pipelined_batches() -> None:
    given: list[tuple[object, ...]] = []

    class Recorder(Gpu):
        def persistent(self, *arguments: object) -> VariantRun:
            given.append(arguments)
            return RIGHT

    net = challenge()
    session = ChallengeSession(net, net.checkpoint(), cast("Any", Recorder(net)))
    tiling = listed_tiling(16, 512, NEURONS)
    cubin, layer = Future[Cubin](), Future[BuiltLayer]()
    cubin.set_result(Cubin(b"chain", "sm_90", 64, 0, 1.0))
    layer.set_result(BuiltLayer(tiling, ((b"layer", cast("Any", None)),), 1.0, {"registers": 40}))
    how = PersistentLayout(16, 128, 8, 2)
    lots, lot_cubin = PipelinedLayout(16, 512, 2, 2), Future[bytes]()
    lot_cubin.set_result(b"lots")
    for _, variant in session.persistent_variants((how, cubin), [(tiling, {"digest": layer})], (lots, lot_cubin)):
        variant()
    [first_launching, *_] = launch_plans(512, NEURONS // 16, 40)
    own = b"chain", how, ({"digest": (b"layer", None)}, first_launching)
    assert given == [own[:2], own, (*own, (b"lots", lots, PIPELINED_LAYERS))]
    no_lots = Future[bytes]()
    no_lots.set_exception(ToolError("ptxas: no", command="ptxas"))
    broken = session.persistent_variants((how, cubin), [(tiling, {"digest": layer})], (lots, no_lots))
    assert session.best("generated", broken).microseconds == RIGHT.microseconds


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (VariantRun(1.0, 2, False, float("nan")), "wrong: 2 rows are left"),
        (VariantRun(1.0, 3, True, 1e-3), "wrong: relative error 1.0e-03"),
        (VariantRun(1.0, 3, True, float("nan")), "wrong: relative error nan"),
    ],
)
def test_a_wrong_contender_has_no_time(wrong: VariantRun, reason: str) -> None:
    found = best(RIGHT, wrong)
    assert found.microseconds is None
    assert found.reason.startswith(reason)
    assert defect(RIGHT, outcome_of(challenge())) == ""


def test_the_table_has_times_rates_and_speed_ups() -> None:
    own, peer = best(VariantRun(50.0, 3, True, 1e-7)), best(VariantRun(210.0, 3, True, 1e-7))
    rows = [replace(own, contender="generated"), replace(peer, contender="cusparse"), best()]
    table, *reasons = challenge_tables(Results({}, {}, tuple(rows)), 120)
    text = shown(table, 120)
    assert "LIVE TE/S" in text[0]
    assert "4.20x" in text[2]
    assert [line for reason in reasons for line in shown(reason, 120)] == ["small, index: no variant fits"]
    assert "converged" in progress_line(rows[0])
    assert progress_line(rows[2]).endswith("no variant fits")


def test_the_file_of_a_run_shows_its_table_again_and_has_no_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    write_results(file, Results({"gpu": "H200"}, {"kind": CHALLENGE_KIND}, (best(RIGHT),)))
    assert run(["bench", "plot", str(file), str(tmp_path / "figures")]) == 2
    shown = capsys.readouterr()
    assert "LIVE TE/S" in shown.out
    assert "have no figures" in shown.err
