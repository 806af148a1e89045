"""TSV networks through the farm: repeated layers are compiled once, and the outputs are correct."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from codegen.frontend.tsv.manifest import CLIP
from codegen.frontend.tsv.matrix import SparseMatrix
from codegen.frontend.tsv.network import tile_rows, write_tsv_network
from codegen.model_zoo.radixnet import radix_net, random_layers
from farm.api import Farm
from farm.bundle.reader import Bundle
from farm.errors import UsageError
from farm.jobs.model import BuildOptions, Job, Status
from farm.runtime.emulated import run_bundle
from farm.verify.network import NetworkQuestion
from tests.toolchain.tools import Tools
from tests.verifications import assert_right

NEURONS, LAYERS, BIAS = 64, 6, -0.3
OPTIONS = BuildOptions(("sm_90",), batches=(4,))


def compiled(farm: Farm, folder: Path, matrices: list[SparseMatrix]) -> Job:
    write_tsv_network(folder, matrices, NEURONS, LAYERS, BIAS, CLIP)
    [job] = farm.compile([farm.read(folder)], OPTIONS)
    assert job.status is Status.SUCCEEDED, job.reason
    return job


def test_layers_that_repeat_are_compiled_once(farm: Farm, tools: Tools, tmp_path: Path) -> None:
    job = compiled(farm, tmp_path / "net", radix_net(NEURONS))
    assert job.total == LAYERS
    assert tools.calls() == ["nvcc"] + ["ptxas"] * 4  # two until it repeats, the first and the last of another order


@pytest.mark.parametrize("random", [False, True], ids=["RadiX-Net", "random"])
def test_a_compiled_network_of_files_computes_what_the_challenge_defines(
    farm: Farm, tmp_path: Path, random: bool
) -> None:
    matrices = random_layers(NEURONS, LAYERS) if random else radix_net(NEURONS, seed=4)
    job = compiled(farm, tmp_path / "net", matrices)
    assert_right(farm.verify(job.id, batch=1))
    farm.fetch(job.id, tmp_path / "bundle", ptx=True)
    rows = np.random.default_rng(1).random((tile_rows(NEURONS), NEURONS)) < 0.5
    images = np.ascontiguousarray(rows.T.astype(np.float32))[None, :, None, :]
    [output] = run_bundle(Bundle(tmp_path / "bundle"), [images])
    y = rows.astype(np.float64)
    for i in range(LAYERS):
        y = np.clip(y @ matrices[i % len(matrices)].kernel(NEURONS, NEURONS).T.astype(np.float64) + BIAS, 0, CLIP)
    assert (y > 0).any()
    np.testing.assert_allclose(output[0, :, 0, :].T, y, rtol=1e-4, atol=1e-4)


def test_onnxruntime_is_not_asked_for_what_no_onnx_file_holds(farm: Farm, tmp_path: Path) -> None:
    job = compiled(farm, tmp_path / "net", radix_net(NEURONS))
    with pytest.raises(UsageError, match="leave out --network"):
        farm.verify_network(job.id, NetworkQuestion())
