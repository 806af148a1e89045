"""A normalisation before a 1x1 convolution, from the model to the kernel in the emulator, agrees with onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.differential.pipeline import ours
from tests.unit.onnx_models import save, values
from tests.unit.test_onnx_input_bounds import CONV, NORM, RELU, dense_net, expected


@pytest.mark.parametrize("virtual_arch", ["compute_75", "compute_80"])
@pytest.mark.parametrize("images", [1, 3])
def test_the_kernel_computes_what_the_model_does(images: int, virtual_arch: str, tmp_path: Path) -> None:
    proto = dense_net(NORM, RELU, CONV)
    x = values(images, 6, 8, 8, seed=7)
    path = save(tmp_path, proto)
    for each in proto.graph.input:
        each.type.tensor_type.shape.dim[0].dim_value = images
    path.write_bytes(proto.SerializeToString())
    found = ours(path, {"x": x}, virtual_arch)["y"]
    wanted = expected(proto, x)
    assert (np.abs(found.values - wanted) <= found.bound + 1e-6 * np.abs(wanted).max()).all()


def test_a_nan_reaches_every_output_that_reads_it(tmp_path: Path) -> None:
    proto = dense_net(NORM, RELU, CONV)
    for each in proto.graph.input:
        each.type.tensor_type.shape.dim[0].dim_value = 1
    path = save(tmp_path, proto)
    x = values(1, 6, 8, 8, seed=7)
    x[0, 0, 3, 4] = np.nan
    found = ours(path, {"x": x})["y"].values
    assert np.isnan(found[0, :, 3, 4]).all()
    assert np.isnan(found).sum() == found.shape[1]
