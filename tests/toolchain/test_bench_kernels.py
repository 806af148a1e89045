"""Benchmarks take their kernels from the farm's worker and store."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Barrier, Event
from time import sleep

import pytest

from codegen.errors import DeviceError, MachineCodeError
from codegen.ir.checkpoint import Layer
from codegen.ir.tiling import Part
from codegen.kernels import tiled
from codegen.model_zoo import TEN_OPERATORS, random_weights
from codegen.sass.qualification import Trust
from codegen.selection.choose import choose_tiling
from codegen.toolchain.ptxas import Cubin, assemble
from codegen.toolchain.tools import find_toolchain
from farm.bench.layers.index_kernels import index_cubins
from farm.cuda.measure import kernels
from farm.cuda.measure.code_sizes import machine_instructions
from farm.cuda.measure.kernels import KernelPool, NotBuiltError
from farm.cuda.measure.workload import Choice, operator_cases
from farm.errors import StoreError
from farm.store import open_store
from farm.store.memory import MemoryStore
from farm.testing import laptop_settings
from farm.tuning.book import TuningBook
from farm.worker.build import Worker
from farm.worker.direct import DirectBuilds
from farm.worker.messages import CubinRequest, CubinResult
from tests.tuning_samples import GPU, other_tiling, record


def test_after_an_error_no_layer_waits_for_a_template_that_nobody_makes_any_more(tmp_path: Path) -> None:
    settings, release = laptop_settings(tmp_path), Event()
    cases = list(operator_cases(["lenet-conv1"], Choice((64,), (0.9, 0.91))))
    with suppress(DeviceError), KernelPool(settings, MemoryStore(), find_toolchain(), "sm_90") as pool:
        for _ in range(settings.jobs):
            pool.begin(lambda *_: release.wait())
        building = [pool.submit(case) for case in cases]
        while not pool._templates:
            sleep(0.01)
        raise DeviceError("the GPU has met an error")
    release.set()
    assert {type(each.exception(timeout=60)) for each in building} == {NotBuiltError}


def test_a_sweep_shares_its_template_and_a_second_run_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, store, toolchain = laptop_settings(tmp_path), MemoryStore(), find_toolchain()
    cases = list(operator_cases(["lenet-conv1"], Choice((64,), (0.9, 0.91))))
    with KernelPool(settings, store, toolchain, "sm_90", with_ptx=True) as pool:
        first, second = (future.result() for future in [pool.submit(case) for case in cases])
        assert first.tiling == second.tiling
        assert len(pool._templates) == 1
        index = pool.begin(partial(index_cubins, TEN_OPERATORS["lenet-conv1"])).result()
    assert index is not None
    assert machine_instructions(index.escoin) > machine_instructions(index.im2col) > 10
    assert first.facts["fmas_kept"] > second.facts["fmas_kept"] > 0
    assert first.facts["ptx_instructions"] > first.facts["fmas_kept"]
    assert first.facts["machine_instructions"] > first.facts["fmas_kept"]
    assert first.predicted_microseconds > 0

    def refuse(*_: object) -> None:
        raise AssertionError("it was made again")

    monkeypatch.setattr(Worker, "_make_template", refuse)
    monkeypatch.setattr("farm.worker.build.assemble", refuse)
    with KernelPool(settings, store, toolchain, "sm_90") as pool:
        again = pool.submit(cases[0]).result()
    assert [cubin for cubin, _ in again.kernels] == [cubin for cubin, _ in first.kernels]


def test_kernels_are_built_in_processes_of_their_own_that_see_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = laptop_settings(tmp_path)
    [case] = operator_cases(["lenet-conv1"], Choice((64,), (0.9,)))

    def refuse(*_: object) -> None:
        raise AssertionError("it was built here, where Python has one core for all")

    monkeypatch.setattr(Worker, "build", refuse)
    with KernelPool(settings, open_store(settings), find_toolchain(), "sm_90", assembler="direct") as pool:
        built = pool.submit(case).result()
        processes = [process for process in pool._processes if process.templates]
        processes[0].kill()
        again = pool.submit(replace(case, weights=random_weights(case.spec, 0.8, seed=1)))
        assert "its worker died" in str(again.exception())
        assert pool.submit(case).result().kernels == built.kernels
    assert built.facts["machine_instructions"] > 10
    assert all(process._process is None for process in pool._processes)


def test_what_cannot_be_built_says_why_to_everyone_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: MemoryStore, data: bytes) -> str:
        raise StoreError("the store cannot be written: the disk is full")

    monkeypatch.setattr(MemoryStore, "put", full)
    cases = list(operator_cases(["lenet-conv1"], Choice((64,), (0.9, 0.91))))
    with KernelPool(laptop_settings(tmp_path), MemoryStore(), find_toolchain(), "sm_90") as pool:
        for future in [pool.submit(case) for case in cases]:
            with pytest.raises(NotBuiltError, match="the disk is full"):
                future.result()


@pytest.mark.parametrize(("trust", "assembler"), [("qualified", "patch"), ("checked", "direct")])
def test_auto_assembles_directly_what_the_settings_trust(tmp_path: Path, trust: Trust, assembler: str) -> None:
    settings = replace(laptop_settings(tmp_path), trust=trust)
    [case] = operator_cases(["lenet-conv1"], Choice((64,), (0.9,)))
    tiling = choose_tiling(case.spec, 64, case.weights.nonzeros_per_output)
    with KernelPool(settings, MemoryStore(), find_toolchain(), "sm_80", assembler="auto") as pool:
        assert pool.assembler_of(case.spec, tiling) == assembler


def test_machine_instructions_are_those_of_all_kernels_of_a_file() -> None:
    body = ".reg .b64 %rd<2>; ld.param.u64 %rd0, [a]; st.global.u64 [%rd0], 1; ret;"
    entry = f".visible .entry {{0}}(.param .u64 a) {{{{ {body} }}}}"
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    one, two = (head + "".join(entry.format(f"k{i}") for i in range(count)) for count in (1, 2))
    sizes = [machine_instructions(assemble(text.encode(), "sm_90", find_toolchain()).data) for text in (one, two)]
    assert sizes[1] == 2 * sizes[0] > 0
    with pytest.raises(ValueError, match="not a 64-bit ELF"):
        machine_instructions(b"PTX")


def test_layers_that_were_given_up_are_not_built_to_the_end(tmp_path: Path) -> None:
    settings, store, toolchain = laptop_settings(tmp_path), MemoryStore(), find_toolchain()
    [case] = operator_cases(["lenet-conv1"], Choice((64,), (0.9,)))
    with KernelPool(settings, store, toolchain, "sm_90") as pool:
        with pytest.raises(NotBuiltError, match="given up"):
            pool.submit(case, wanted=lambda: False).result()
        assert pool.submit(case).result().kernels


def test_the_parts_of_a_layer_are_made_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, store, toolchain = replace(laptop_settings(tmp_path), jobs=2), MemoryStore(), find_toolchain()
    [case] = operator_cases(["lenet-conv2"], Choice((64,), (0.9,)))
    both, made = Barrier(2, timeout=60), Worker.build_cubin

    def made_with_another(worker: Worker, request: CubinRequest) -> CubinResult:
        both.wait()
        return made(worker, request)

    monkeypatch.setattr(Worker, "build_cubin", made_with_another)
    monkeypatch.setattr(kernels, "choose_parts", lambda *_: (Part(0, 1), Part(1, 2)))
    with KernelPool(settings, store, toolchain, "sm_90") as pool:
        assert len(pool.submit(case).result().kernels) == 2


def test_a_layer_that_is_assembled_directly_is_one_cubin_and_what_is_refused_is_cut_into_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, store, toolchain = laptop_settings(tmp_path), MemoryStore(), find_toolchain()
    [case] = operator_cases(["lenet-conv2"], Choice((64,), (0.9,)))
    groups = tiled(case.spec, choose_tiling(case.spec, 64, case.weights.nonzeros_per_output)).streams.count
    assert groups > 1
    monkeypatch.setattr(kernels, "choose_parts", lambda *_: (Part(0, 1), Part(1, groups)))
    with KernelPool(settings, store, toolchain, "sm_90", assembler="direct") as pool:
        assert len(pool.submit(case).result().kernels) == 1

    def refuse(*_: object) -> Cubin:
        raise MachineCodeError("two sums are in one register")

    monkeypatch.setattr(DirectBuilds, "assemble", refuse)
    with KernelPool(settings, MemoryStore(), toolchain, "sm_90", assembler="direct") as pool:
        assert len(pool.submit(case).result().kernels) == 2


@pytest.mark.parametrize("parts", [1, 2])
def test_what_the_assembler_refuses_is_left_to_ptxas_only_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    [case] = operator_cases(["lenet-conv2"], Choice((64,), (0.9,)))
    groups = tiled(case.spec, choose_tiling(case.spec, 64, case.weights.nonzeros_per_output)).streams.count
    bounds = [0, *range(1, parts), groups]
    cut = tuple(Part(*pair) for pair in pairwise(bounds))
    monkeypatch.setattr(kernels, "choose_parts", lambda *_: cut)

    def refuse(*_: object) -> Cubin:
        raise MachineCodeError("two sums are in one register")

    monkeypatch.setattr(DirectBuilds, "assemble", refuse)
    with KernelPool(laptop_settings(tmp_path), MemoryStore(), find_toolchain(), "sm_90", assembler="direct") as pool:
        with pytest.raises(NotBuiltError, match="two sums are in one register"):
            pool.submit(case, fallback=False).result()
        assert len(pool.submit(case).result().kernels) == parts


def test_a_given_tiling_is_taken_instead_of_the_chosen_one(tmp_path: Path) -> None:
    settings, store, toolchain = laptop_settings(tmp_path), MemoryStore(), find_toolchain()
    [case] = operator_cases(["lenet-conv1"], Choice((64,), (0.9,)))
    with KernelPool(settings, store, toolchain, "sm_90") as pool:
        chosen = pool.submit(case).result()
        other = other_tiling(chosen.tiling)
        given = pool.submit(case, tiling=other).result()
    assert given.tiling == other
    assert given.kernels != chosen.kernels
    book = TuningBook.of([record(other, Layer("", case.spec, case.weights, "", ""))])
    with KernelPool(settings, store, toolchain, "sm_90", book=book) as pool:
        recorded = pool.submit(case).result()
    assert (recorded.tiling, recorded.kernels) == (other, given.kernels)
    assert (recorded.facts["tiling_of"], chosen.facts["tiling_of"]) == (GPU, "model")
