"""Cubins on the GPU here, against the float64 reference and the emulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from codegen.emulator.ptx import emulate
from codegen.errors import DeviceError
from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import from_float32, to_float32
from codegen.ir.layer_spec import Activation, LayerSpec, Linear
from codegen.ir.tiling import Part
from codegen.kernels import products_together, stream_count
from codegen.model_zoo import TEN_OPERATORS, random_weights
from codegen.selection.choose import CODE_BYTES, choose_parts, choose_tiling
from codegen.toolchain.ptxas import assemble, ptxas_options
from codegen.verification.compare import Verification, poisoned, random_gate, random_input, random_residual
from tests.error_bounds import error_bound
from tests.gpu.layers import NETWORK_LAYERS, ODD_LAYERS, weights_of
from tests.gpu.workbench import LIMITS, Workbench, whole

MOST_BYTES_PER_NONZERO = 28
"""Limit for the largest layers, which the default limit would skip."""

LONGEST_FIRST = sorted(
    NETWORK_LAYERS, key=lambda name: -NETWORK_LAYERS[name].spec.weights_count * (1 - NETWORK_LAYERS[name].sparsity)
)
"""Layers by descending work: no process begins minutes of ptxas when the others are about to end."""
SPECIAL_VALUES = (np.inf, -np.inf, np.nan, -0.0, 1e-40, 3e38, 1e-7)
POINTWISE = ODD_LAYERS["pointwise, 16 bytes a copy"]


def expect_right(spec: LayerSpec, found: Verification) -> None:
    assert found.ok, found.message
    if spec.data_type == "float32":
        assert found.relative_error < 1e-6


@pytest.mark.parametrize("name", LONGEST_FIRST)
def test_layers_of_networks_are_right_with_the_tiling_and_parts_chosen_for_them(
    name: str, workbench: Workbench
) -> None:
    chosen = NETWORK_LAYERS[name]
    weights = weights_of(chosen.spec, chosen.sparsity)
    limit = max(CODE_BYTES, MOST_BYTES_PER_NONZERO * weights.nonzeros)
    tiling = choose_tiling(chosen.spec, chosen.batch, weights.nonzeros_per_output, code_limit_bytes=limit)
    parts = choose_parts(chosen.spec, tiling, weights.nonzeros_per_output)
    expect_right(chosen.spec, workbench.check(chosen.spec, tiling, weights, chosen.batch, parts=parts))


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("name", TEN_OPERATORS)
def test_the_ten_operators_are_right_on_the_gpu(name: str, batch: int, workbench: Workbench) -> None:
    spec = TEN_OPERATORS[name]
    weights = random_weights(spec, 0.9)
    tiling = choose_tiling(spec, batch, weights.nonzeros_per_output)
    expect_right(spec, workbench.check(spec, tiling, weights, batch))


@pytest.mark.parametrize("virtual_arch", ["compute_75", "compute_80"])
@pytest.mark.parametrize("sparsity", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("name", ODD_LAYERS)
def test_odd_layers_are_right_on_the_gpu(name: str, sparsity: float, virtual_arch: str, workbench: Workbench) -> None:
    odd = ODD_LAYERS[name]
    weights = weights_of(odd.spec, sparsity)
    expect_right(odd.spec, workbench.check(odd.spec, odd.tiling, weights, odd.batch, virtual_arch))


@pytest.mark.parametrize("rows", [1, 2, 31, 32, 33, 64, 65, 128, 129])
@pytest.mark.parametrize("name", [name for name, odd in ODD_LAYERS.items() if isinstance(odd.spec, Linear)])
def test_any_number_of_rows_is_right(name: str, rows: int, workbench: Workbench) -> None:
    odd = ODD_LAYERS[name]
    expect_right(odd.spec, workbench.check(odd.spec, odd.tiling, weights_of(odd.spec, 0.5), rows))


@pytest.mark.parametrize("name", [name for name, odd in ODD_LAYERS.items() if odd.tiling.form == "rolled"])
def test_the_parts_of_a_layer_make_its_whole_output(name: str, workbench: Workbench) -> None:
    odd = ODD_LAYERS[name]
    groups = stream_count(odd.spec, odd.tiling)
    parts = [Part(group, group + 1) for group in range(groups)]
    found = workbench.check(odd.spec, odd.tiling, weights_of(odd.spec, 0.5), odd.batch, parts=reversed(parts))
    expect_right(odd.spec, found)


@pytest.mark.parametrize("virtual_arch", ["compute_75", "compute_80"])
@pytest.mark.parametrize("name", ODD_LAYERS)
def test_the_gpu_and_the_emulator_agree_bit_for_bit_but_where_the_gpu_approximates(
    name: str, virtual_arch: str, workbench: Workbench
) -> None:
    odd = ODD_LAYERS[name]
    (kernel,) = workbench.kernels(
        odd.spec, odd.tiling, weights_of(odd.spec, 0.8), whole(odd.spec, odd.tiling), virtual_arch
    )
    x = to_float32(random_input(odd.spec, odd.batch, seed=1), odd.spec.data_type)
    # A few, so that some outputs see none of them.
    places = np.random.default_rng(2).choice(x.size, len(SPECIAL_VALUES), replace=False)
    np.put(x, places, np.array(SPECIAL_VALUES, dtype=np.float32))
    x = from_float32(x, odd.spec.data_type)
    residual, gate = random_residual(odd.spec, odd.batch, seed=1), random_gate(odd.spec, odd.batch, seed=1)
    expected, launch = poisoned(odd.spec, odd.batch), kernel.launch
    arguments: dict[str, Any] = {"input": x, "output": expected, "residual": residual, "gate": gate}
    arguments |= launch.numbers(odd.batch)
    emulate.run(
        kernel.ptx,
        launch.grid_at(odd.batch),
        launch.block,
        launch.shared_bytes,
        [arguments[name] for name in launch.arguments],
    )
    output = workbench.device.run_layer(workbench.cubins([kernel]), x, odd.spec.output_shape, residual, gate)
    found, wanted = (to_float32(each, odd.spec.data_type) for each in (output, expected))
    finite = np.isfinite(wanted)
    assert finite.any()
    if any(isinstance(step, Activation) for step in odd.spec.epilogue):
        # ex2.approx and rcp.approx are a GPU's own: both results are within the bound, so they are within two of it.
        weights = weights_of(odd.spec, 0.8)
        together = products_together(weights, odd.tiling)
        bound = error_bound(odd.spec, weights, x, residual=residual, products_together=together)
        np.testing.assert_array_equal(found[~finite], wanted[~finite])
        assert (np.abs(found[finite] - wanted[finite]) <= 2 * bound[finite]).all()
    else:
        np.testing.assert_array_equal(found, wanted)


def test_a_wrong_weight_is_noticed(workbench: Workbench) -> None:
    spec, tiling = POINTWISE.spec, POINTWISE.tiling
    weights = random_weights(spec, 0.5)
    other = Weights(weights.kernel * np.float32(1.001), weights.bias)
    output = workbench.run(spec, workbench.cubins(workbench.kernels(spec, tiling, other, whole(spec, tiling))), 2)
    assert "times its error bound" in workbench.verify(spec, tiling, weights, output).message


def test_outputs_that_no_block_writes_are_noticed(workbench: Workbench) -> None:
    spec, tiling = POINTWISE.spec, POINTWISE.tiling
    weights = random_weights(spec, 0.5)
    [(cubin, launch)] = workbench.cubins(workbench.kernels(spec, tiling, weights, whole(spec, tiling)))
    half = replace(launch, grid=(launch.grid[0], replace(launch.grid[1], images=2), launch.grid[2]))
    output = workbench.run(spec, [(cubin, half)], 2)
    assert "not written" in workbench.verify(spec, tiling, weights, output).message


def test_a_part_that_was_not_launched_is_noticed(workbench: Workbench) -> None:
    spec, tiling = POINTWISE.spec, POINTWISE.tiling
    weights = random_weights(spec, 0.5)
    output = workbench.run(spec, workbench.cubins(workbench.kernels(spec, tiling, weights, [Part(1, 2)])), 2)
    plane = spec.output_shape[1:]
    missing = 2 * tiling.group_outputs * int(np.prod(plane))
    assert workbench.verify(spec, tiling, weights, output).message == f"{missing} outputs were not written"


def test_a_cubin_for_another_gpu_is_an_error_in_words(workbench: Workbench) -> None:
    spec, tiling = POINTWISE.spec, POINTWISE.tiling
    (kernel,) = workbench.kernels(spec, tiling, random_weights(spec, 0.5), whole(spec, tiling))
    other = "sm_120" if workbench.device.arch != "sm_120" else "sm_90"
    cubin = assemble(kernel.ptx, other, workbench.toolchain, ptxas_options(3), LIMITS)
    with pytest.raises(DeviceError, match="does not load"):
        workbench.device.load(cubin.data, kernel.launch)
