"""`farm bench graphchallenge` on a GPU: every contender gives the rows and the values of float64.

The network has few neurons, so that ptxas is quick; three layers follow one another without a compaction between them.
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from cli.exit_codes import OK
from cli.main import run
from codegen.frontend.tsv.manifest import CLIP
from codegen.frontend.tsv.matrix import SparseMatrix
from codegen.frontend.tsv.network import write_tsv_network
from codegen.ir.checkpoint import FloatArray
from codegen.model_zoo.radixnet import radix_net, random_layers
from codegen.toolchain.ptxas import Cubin
from codegen.toolchain.tools import Toolchain
from farm.bench.graphchallenge.benchmark import ChallengeSession, defect
from farm.bench.graphchallenge.kernels import (
    INDEX_KERNELS,
    PIPELINED_LAYERS,
    compile_index_kernels,
    compile_persistent,
    compile_pipelined,
    persistent_layout,
    pipelined_layout,
)
from farm.bench.graphchallenge.network import COMPACTED, ChallengeNetwork
from farm.bench.graphchallenge.torch_network import ChallengeGpu
from farm.cuda.device import Device
from tests.unit.small_challenge import write_rows

NEURONS, ROWS, LAYERS, BIAS = 64, 3000, COMPACTED + 4, -0.3


def network(random: bool) -> tuple[list[SparseMatrix], float]:
    """Layers of a network until they repeat, and its bias."""
    return (random_layers(NEURONS, 3), 0.0) if random else (radix_net(NEURONS), BIAS)


def inputs() -> FloatArray:
    return (np.random.default_rng(2).random((ROWS, NEURONS)) < 0.2).astype(np.float32)


@pytest.mark.parametrize("random", [False, True], ids=["RadiX-Net", "random"])
def test_all_contenders_compute_the_challenge(random: bool, device: Device, inline_farm: None, tmp_path: Path) -> None:
    matrices, bias = network(random)
    net = write_tsv_network(tmp_path / "net", matrices, NEURONS, LAYERS, bias, CLIP)
    write_rows(tmp_path / "rows.tsv", inputs())
    options = ["--inputs", str(tmp_path / "rows.tsv"), "--rows", str(ROWS), "--local", "-q"]
    assert run(["bench", "graphchallenge", str(net), *options, "--json", str(tmp_path / "r.json")]) == OK
    found = json.loads((tmp_path / "r.json").read_text())["measurements"]
    assert [each["contender"] for each in found] == ["generated", "index", "cusparse"]
    for each in found:
        assert each["microseconds"] > 0, each["reason"]
        assert each["relative_error"] < 1e-4
        assert each["facts"]["rows_left"] > 0


@pytest.mark.parametrize("random", [False, True], ids=["RadiX-Net", "random"])
def test_layers_in_one_launch_compute_the_challenge(random: bool, device: Device, toolchain: Toolchain) -> None:
    matrices, bias = network(random)
    in_turn = tuple(matrices[i % len(matrices)] for i in range(LAYERS))
    challenge = ChallengeNetwork("small", NEURONS, in_turn, (bias,) * LAYERS, CLIP, inputs())
    checkpoint = challenge.checkpoint()
    how = persistent_layout(challenge, checkpoint)
    assert how is not None
    compiled: Future[Cubin] = Future()
    compiled.set_result(compile_persistent(checkpoint, how, device.arch, toolchain))
    groups = {group for _, group in INDEX_KERNELS}
    helpers = {group: compile_index_kernels(challenge, group, device.arch, toolchain) for group in groups}
    gpu = ChallengeGpu(challenge, checkpoint, helpers)
    session = ChallengeSession(challenge, checkpoint, gpu)
    variants = [*session.persistent_variants((how, compiled)), *session.persistent_index_variants()]
    lots = pipelined_layout(challenge, checkpoint)
    assert lots is not None
    first = compile_pipelined(checkpoint, lots, device.arch, toolchain), lots, PIPELINED_LAYERS
    by_lots = partial(gpu.persistent, compiled.result().data, how, None, first)
    runs = [*(run for _, run in variants), by_lots]
    assert [defect(run(), gpu.reference) for run in runs] == ["", "", "", ""]
