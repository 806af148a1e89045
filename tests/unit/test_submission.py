"""A checkpoint becomes a job: each layer with its tiling and parts, or skipped with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from codegen.errors import TilingError
from codegen.ir.checkpoint import Checkpoint
from codegen.ir.layer_spec import LIKELY_ROWS, Conv2d, Linear
from codegen.ir.tiling import Part, Tiling
from codegen.sass.qualification import CHOICES, AssemblerChoice, unsupported_reason
from farm.errors import UsageError
from farm.jobs.model import BuildOptions, NewJob
from farm.jobs.submission import empty_layers_warning, joined_notes, new_job
from farm.store.background import BackgroundPuts
from farm.store.memory import MemoryStore
from tests.samples import SMALL, SMALLER, checkpoint, layer

OPTIONS = BuildOptions(("sm_90",))
TILING = Tiling("conv2d", 32, 1, 1, 2, 8, 2)


def submitted(net: Checkpoint, options: BuildOptions = OPTIONS, name: str = "net") -> NewJob:
    return new_job(net, options, namespace="test", name=name, store=MemoryStore())


def test_a_build_has_all_that_the_checkpoint_says_of_its_layer() -> None:
    folded = ("BatchNormalization bn1", "Add add1")
    [build] = submitted(checkpoint(replace(layer(), residual="skip", gate="gates", folded=folded))).builds
    assert (build.residual, build.gate, build.rows, build.folded) == ("skip", "gates", 1, folded)
    assert (build.layer, build.spec, build.input, build.output) == ("conv1", SMALL, "conv1.in", "conv1.out")


def test_the_parts_of_a_layer_are_those_chosen_for_its_tiling_and_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = layer()
    asked: list[Any] = []

    def choose(*arguments: Any) -> tuple[Part, ...]:
        asked.append(arguments)
        return Part(0, 1), Part(1, 3)

    monkeypatch.setattr("farm.jobs.submission.choose_parts", choose)
    [build] = submitted(checkpoint(sample)).builds
    assert build.parts == (Part(0, 1), Part(1, 3))
    [(spec, tiling, nonzeros)] = asked
    assert (spec, tiling, nonzeros.tolist()) == (SMALL, build.tiling, sample.weights.nonzeros_per_output.tolist())


def test_weights_are_on_their_way_to_the_store_while_tilings_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    all_chosen, chosen = Event(), list[Tiling]()

    class SlowStore(MemoryStore):
        def put(self, data: bytes) -> str:
            assert all_chosen.wait(10), "the store was waited for before the last tiling was chosen"
            return super().put(data)

    def choose(*_: Any, **__: Any) -> Tiling:
        chosen.append(TILING)
        if len(chosen) == 2:
            all_chosen.set()
        return TILING

    monkeypatch.setattr("farm.tuning.book.choose_tiling", choose)
    net, store = checkpoint(layer("conv1"), layer("conv2", seed=1)), SlowStore()
    with BackgroundPuts(store) as writer:
        job = new_job(net, OPTIONS, namespace="test", name="net", store=writer)
    assert [store.get(build.weights) for build in job.builds] == [each.weights.to_bytes() for each in net.layers]


def test_the_rows_of_an_image_count_as_batch_and_unknown_ones_as_those_of_a_usual_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches: list[int] = []

    def choose(spec: Any, batch: int, nonzeros: Any, **_: Any) -> Tiling:
        batches.append(batch)
        return TILING

    monkeypatch.setattr("farm.tuning.book.choose_tiling", choose)
    monkeypatch.setattr("farm.jobs.submission.choose_parts", lambda *_: (Part(0, 4),))
    rows = [1, 197, None]
    net = checkpoint(*(replace(layer(f"fc{each}", spec=Linear(16, 8)), rows=each) for each in rows))
    builds = submitted(net, replace(OPTIONS, batches=(4,), leave_dense="never")).builds
    assert batches == [4, 4 * 197, 4 * LIKELY_ROWS]
    assert [build.rows for build in builds] == rows


def test_a_layer_with_more_code_than_allowed_is_skipped_with_its_size() -> None:
    large = layer("large", spec=replace(SMALL, channels=64, output_channels=64), sparsity=0.5)
    net = checkpoint(large, layer("small", spec=SMALLER))
    assert [build.layer for build in submitted(net).builds] == ["large", "small"]
    job = submitted(net, replace(OPTIONS, code_limit_bytes=100_000))
    assert [build.layer for build in job.builds] == ["small"]
    [skipped] = job.skipped
    assert (skipped.name, skipped.operator) == ("large", "Conv")
    assert skipped.reason.startswith("its code would be ")


def test_a_layer_that_cannot_be_cut_is_skipped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> tuple[Part, ...]:
        raise TilingError("one K group is too large for ptxas")

    monkeypatch.setattr("farm.jobs.submission.choose_parts", refuse)
    with pytest.raises(UsageError, match=r"no layer can be compiled: conv1 \(Conv\): one K group is too large"):
        submitted(checkpoint(layer()))


@pytest.mark.parametrize("change", [{"code_limit_bytes": 1_000_000}, {"batches": (1, 8)}, {"optimisation": 1}])
def test_other_options_are_another_request(change: dict[str, int]) -> None:
    net = checkpoint(layer())
    first, second = submitted(net), submitted(net)
    assert (first.id == second.id, first.request_digest == second.request_digest) == (False, True)
    assert submitted(net, replace(OPTIONS, **change)).request_digest != first.request_digest


def test_options_come_back_from_json_as_they_were() -> None:
    options = BuildOptions(("sm_80", "sm_90"), (1, 8), "full", 1, True, 5_000_000)
    assert BuildOptions.from_json(options.to_json()) == options


def test_a_warning_names_the_layers_without_weights() -> None:
    [build] = submitted(checkpoint(layer("fc1"))).builds
    assert not empty_layers_warning([build])
    warning = empty_layers_warning([replace(build, nonzeros=0)] * 2)
    assert warning == "1 layer has only zeros, the bias alone remains: fc1. Check the pruning."


def test_a_note_on_many_files_is_one_warning_with_their_number() -> None:
    files = [f"net{i}.onnx" for i in range(6)]
    notes = [*((file, "its inputs fix the batch") for file in files), ("net1.onnx", "another note")]
    assert joined_notes(notes) == [
        "net0.onnx, net1.onnx, net2.onnx, net3.onnx and 2 more: its inputs fix the batch",
        "net1.onnx: another note",
    ]


def test_the_path_of_a_model_is_kept_absolute() -> None:
    net = replace(checkpoint(layer()), path="models/net.onnx")
    assert submitted(net).model == str(Path.cwd() / "models" / "net.onnx")


def test_equal_content_under_another_name_is_another_request() -> None:
    net = checkpoint(layer())
    assert submitted(net, name="a").request_digest != submitted(net, name="b").request_digest


def test_direct_assembly_takes_no_tiling_that_only_ptxas_supports() -> None:
    """A layer whose channels are split over clusters, which takes ptxas minutes."""
    spec = Conv2d(512, 7, 7, 512, 3, 3, padding=(1, 1, 1, 1))
    net = checkpoint(layer("conv", spec=spec))
    chosen: dict[AssemblerChoice, Tiling] = {}
    for assembler in CHOICES:
        options = BuildOptions(("sm_90",), batches=(1,), tuning=False, assembler=assembler)
        [build] = new_job(net, options, namespace="", name="net", store=None).builds
        chosen[assembler] = build.tiling
    assert chosen["ptxas"].cluster > 1
    assert chosen["direct"] == chosen["ptxas"]
    assert not unsupported_reason(spec, chosen["direct"], "sm_90")


def test_a_large_layer_has_its_k_groups_in_turn_where_ptxas_makes_it_so_that_it_is_cut() -> None:
    net = checkpoint(layer("conv", spec=Conv2d(1024, 14, 14, 2048, 1, 1, stride=(2, 2))))
    options = BuildOptions(("sm_90", "sm_100"), tuning=False)

    def in_order(*, is_direct: bool) -> dict[str, tuple[str, int]]:
        job = new_job(net, options, namespace="", name="net", store=None, is_direct=lambda *_: is_direct)
        return {
            arch: (build.tiling.order, len(build.parts_of(arch)))
            for build in job.builds
            for arch in build.archs(options)
        }

    assert in_order(is_direct=True) == dict.fromkeys(options.archs, ("place", 1))
    by_ptxas = in_order(is_direct=False)
    assert {order for order, _ in by_ptxas.values()} == {"group"}
    assert all(parts > 1 for _, parts in by_ptxas.values())
