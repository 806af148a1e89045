"""Recorded graphs of the runtimes fetch the next layers' code by its address, as planned, on a driver being played."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from codegen.sass.cubin import CubinFile
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain
from farm.bundle.manifest import read_layers
from farm.bundle.reader import layers_of
from farm.bundle.row_groups import group_for, row_groups
from farm.cuda.code_address import with_address
from farm.cuda.prefetch import BLOCKS, GpuLimits, estimate_layer, plan_prefetches
from tests.toolchain.played_bundle import played_bundle
from tests.toolchain.played_runtimes import FLAGS, LANGUAGES, C, Played
from tests.unit.onnx_models import info, model, node, save, tensor, values

IMAGES_AT_ONCE = 64
CODE_BYTES = 400_000

ADDRESSED = """
#include <stdio.h>
#include <stdlib.h>

#include "elf.h"

int main(int count, char **arguments) {
    static char data[1 << 20];
    size_t bytes, made_bytes, code_bytes;
    FILE *file = fopen(arguments[1], "rb");
    char *made;
    (void)count;
    bytes = fread(data, 1, sizeof data, file);
    fclose(file);
    made = farm_with_address(data, bytes, &made_bytes, &code_bytes);
    if (!made) return 3;
    file = fopen(arguments[2], "wb");
    fwrite(made, 1, made_bytes, file);
    fwrite(&code_bytes, sizeof code_bytes, 1, file);
    fclose(file);
    free(made);
    return 0;
}
"""


@pytest.fixture(scope="module")
def cubin() -> bytes:
    """A real one, of a kernel of the right name, and as long as those of large layers."""
    ptx = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry conv2d() { ret; }\n"
    return assemble(ptx, "sm_80", find_toolchain()).data.ljust(CODE_BYTES, b"\0")


@pytest.fixture(scope="module", params=[(64,), (8, 64)])
def deep(tmp_path_factory: pytest.TempPathFactory, cubin: bytes, request: pytest.FixtureRequest) -> Path:
    """Six convolutions one after another, a Softmax in between, for one batch size or two."""
    folder = tmp_path_factory.mktemp("deep")
    nodes = [node("Conv", f"t{i} w{i}", f"t{i + 1}", f"conv{i}", pads=[1] * 4) for i in range(6)]
    nodes[2].input[0] = "s"
    nodes.insert(2, node("Softmax", "t2", "s", axis=1))
    weights = [tensor(f"w{i}", values(16, 16, 3, 3)) for i in range(6)]
    proto = model(nodes, weights, inputs=[info("t0", ("N", 16, 28, 28))], output="t6")
    return played_bundle(folder / "deep", save(folder, proto), code=cubin, batches=request.param)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_graph_fetches_code_by_its_address_as_planned(
    played: Played, deep: Path, cubin: bytes, language: str
) -> None:
    assert played.run(language, deep, IMAGES_AT_ONCE, arch=86, recorded=True) == ""
    layers = layers_of(read_layers(json.loads((deep / "manifest.json").read_text())["layers"])).values()
    cubins = [group_for(row_groups(layer.cubins_for("sm_86")), IMAGES_AT_ONCE)[0] for layer in layers]
    gpu, moved_bytes = GpuLimits(132, 60_000_000), 2 * 4 * 16 * 28 * 28
    runs = [estimate_layer([(each.launch, each.bytes)], moved_bytes, IMAGES_AT_ONCE, gpu) for each in cubins]
    plan = plan_prefetches(runs, gpu.l2_bytes)
    assert sum(len(each.layers) for each in plan) == 5
    order = [each for begun in plan for each in (*["fetch_code"] * len(begun.layers), "conv2d")]
    enqueued = [line[1:] for line in played.lines() if line[0] == "launch"]
    assert [line[0] for line in enqueued if line[0] in ("fetch_code", "conv2d")] == order
    fetches = [line for line in enqueued if line[0] == "fetch_code"]
    assert {tuple(line[1:8]) for line in fetches} == {(str(BLOCKS), "1", "1", "32", "1", "1", "0")}
    assert len({line[9] for line in fetches}) == 5  # each another address
    assert {line[10] for line in fetches} == {f"p{CubinFile.read(cubin).code.size:x}"}
    waits = [wait for each in plan if each.layers for wait in (each.wait_nanoseconds, *[0] * (len(each.layers) - 1))]
    assert any(waits)
    assert [line[11] for line in fetches] == [f"p{wait:x}" for wait in waits]
    [side] = {line[8] for line in fetches}
    assert side != "0"
    last = [line for line in played.lines() if line[0] in ("launch", "record", "wait")][-2:]
    assert (last[0][0], last[0][2], last[1]) == ("record", side, ["wait", "0", last[0][1]])


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_is_fetched_by_launches_that_are_not_recorded_or_of_code_that_stays(
    played: Played, deep: Path, language: str
) -> None:
    for images, recorded in ((IMAGES_AT_ONCE, False), (1, True)):
        assert played.run(language, deep, images, arch=86, recorded=recorded) == ""
        assert len(played.launches()) == 7
        assert not [line for line in played.lines() if line[0] == "wait"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_driver_that_refuses_a_variable_or_the_fetching_kernel_is_asked_for_less(
    played: Played, deep: Path, language: str
) -> None:
    for refused in ("variable", "fetcher"):
        assert played.run(language, deep, IMAGES_AT_ONCE, arch=86, recorded=True, fail=refused) == ""
        assert len(played.launches()) == 7


def test_c_adds_the_same_variable_to_a_cubin(tmp_path: Path, cubin: bytes) -> None:
    source = tmp_path / "addressed.c"
    source.write_text(ADDRESSED)
    command = ["gcc", *FLAGS, f"-I{C}", source, C / "elf.c", "-o", tmp_path / "addressed"]
    subprocess.run(command, check=True)
    cut = [cubin[:size] for size in (0, 4, 63, 64, 1000, cubin.rindex(b"\1", 0, 5000))]
    for data in (cubin, cubin.rstrip(b"\0"), b"PTX", *cut):
        (tmp_path / "in").write_bytes(data)
        done = subprocess.run([tmp_path / "addressed", tmp_path / "in", tmp_path / "out"])
        found = with_address(data)
        assert done.returncode == (0 if found else 3)
        if found:
            assert (tmp_path / "out").read_bytes() == found[0] + found[1].to_bytes(8, "little")
