"""direct_global: which layers it computes, when it is chosen, and its tilings in JSON."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from codegen.errors import TilingError
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import Clip, Conv2d, LayerSpec, Linear
from codegen.ir.tiling import Tiling
from codegen.kernels import launch_of, tiled
from codegen.sass.qualification import assembler_for
from codegen.selection.choose import choose_tiling, misfit_of, ranked_tilings
from farm.tuning.record import tiling_of_json

WIDE = Conv2d(4096, 1, 256, 4096, 1, 1, epilogue=(Clip(0.0, 32.0),))
DIRECT = Tiling("direct_global", 64, 1, 1, 32, 32, stages=0)


def even(spec: LayerSpec, each: int) -> np.ndarray:
    return np.full(spec.output_channels, each)


def test_a_wide_sparse_perceptron_is_computed_by_direct_global() -> None:
    tiling = choose_tiling(WIDE, 64, even(WIDE, 32))
    assert tiling.kernel == "direct_global"
    assert not tiling.listed
    assert launch_of(WIDE, tiling).shared_bytes == 0


def test_a_full_template_is_never_of_direct_global() -> None:
    assert choose_tiling(WIDE, 64, even(WIDE, 32), form="full").kernel == "conv2d"


@pytest.mark.parametrize("density", [0.02, 0.05, 0.1, 0.5])
@pytest.mark.parametrize(("channels", "size", "kernels"), [(64, 56, 256), (512, 28, 128), (2048, 7, 512)])
def test_pointwise_convolutions_of_image_networks_go_through_shared_memory(
    channels: int, size: int, kernels: int, density: float
) -> None:
    spec = Conv2d(channels, size, size, kernels, 1, 1)
    assert choose_tiling(spec, 64, even(spec, round(channels * density))).kernel == "conv2d"


def test_direct_global_is_not_ranked_for_dense_layers() -> None:
    spec = replace(WIDE, channels=256, output_channels=256)
    assert any(tiling.kernel == "direct_global" for tiling in ranked_tilings(spec, 64, even(spec, 8)))
    assert all(tiling.kernel == "conv2d" for tiling in ranked_tilings(spec, 64, even(spec, 64)))


@pytest.mark.parametrize(
    "spec",
    [
        Conv2d(64, 1, 64, 64, 1, 3, padding=(0, 1, 0, 1)),
        Conv2d(64, 1, 64, 64, 1, 1, groups=2),
        Conv2d(64, 1, 64, 64, 1, 1, stride=(1, 2)),
        Conv2d(64, 1, 64, 64, 1, 1, data_type="float16"),
        Conv2d(64, 1, 64, 64, 1, 1, bounded=True),
        Conv2d(4096, 1, 1024, 64, 1, 1),  # its channels lie further apart than an instruction reaches
        Linear(64, 64),
    ],
    ids=str,
)
def test_direct_global_refuses_other_layers(spec: LayerSpec) -> None:
    with pytest.raises(TilingError, match="direct_global cannot compute") as refused:
        tiled(spec, DIRECT)
    assert misfit_of(spec, DIRECT, even(spec, 1)) == str(refused.value)


def test_keys_of_other_tilings_are_as_they_were() -> None:
    assert "listed" not in DIRECT.to_json()
    again = replace(DIRECT, listed=True)
    assert Tiling(**again.to_json()) == again


def test_the_lists_of_a_launch_are_no_elements() -> None:
    launch = launch_of(WIDE, replace(DIRECT, listed=True))
    types = {argument["name"]: argument["type"] for argument in launch.to_json()["arguments"]}
    assert types == {
        "input": "float32*",
        "output": "float32*",
        "images": "int32",
        "output_step": "int32",
        "count": "int32*",
        "places": "int32*",
        "marks": "uint8*",
    }
    assert Launch.from_json(launch.to_json()) == launch


def test_a_block_writes_its_columns_of_its_group() -> None:
    [region] = tiled(replace(WIDE, width=100), DIRECT).block_regions((1, 2, 3))
    assert (region.images, region.outputs, region.columns) == (slice(2, 3), slice(96, 128), slice(64, 100))


def test_ptxas_assembles_them() -> None:
    assembler, reason = assembler_for("direct", WIDE, DIRECT, "sm_90", "13.0")
    assert assembler == "ptxas"
    assert "direct global loads" in reason


def test_a_tuning_record_may_hold_one_but_no_listed_one() -> None:
    assert tiling_of_json(DIRECT.to_json()) == DIRECT
    for wrong in ({"listed": True}, {"rows": 0}, {"stages": -1}):
        with pytest.raises(ValueError, match="cannot be chosen"):
            tiling_of_json(DIRECT.to_json() | wrong)
