"""The peers of `farm bench` on a GPU: right on layers of every kind, or a reason why they are not measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.ir.layer_spec import Clip, Conv2d, ConvTranspose2d, LayerSpec, Linear
from codegen.model_zoo import random_weights
from codegen.toolchain.tools import Toolchain
from farm.bench.layers.contenders import GENERATED, PEERS
from farm.bench.layers.roof import Peaks
from farm.bench.layers.session import Rules, Session
from farm.cuda.device import Device
from farm.cuda.measure.kernels import KernelPool
from farm.cuda.measure.workload import Case, CaseKey
from farm.store.memory import MemoryStore
from farm.testing import laptop_settings

CUDNN = {"cudnn-fp32", "cudnn-tf32", "cudnn-fp16"}
ALONE = {name for name in PEERS if name.endswith(("-gemm", "-spmm"))}
LAYERS: dict[str, tuple[LayerSpec, set[str]]] = {
    "plain": (Conv2d(8, 12, 10, 16, 3, 3, padding=(1, 1, 1, 1), epilogue=(Clip(low=0.0),)), set(PEERS) - {"gimmik"}),
    "strided and dilated": (Conv2d(8, 15, 17, 8, 3, 3, stride=(2, 2), dilation=(2, 2)), set(PEERS) - {"gimmik"}),
    "padded on one side": (Conv2d(8, 12, 12, 8, 3, 3, stride=(2, 2), padding=(0, 0, 1, 1)), set(PEERS) - {"gimmik"}),
    "pointwise, strided": (Conv2d(40, 12, 12, 24, 1, 1, stride=(2, 2)), set(PEERS)),
    "grouped": (Conv2d(8, 12, 12, 16, 3, 3, groups=4, padding=(1, 1, 1, 1)), CUDNN),
    "transposed": (ConvTranspose2d(8, 7, 7, 6, 2, 2, stride=(2, 2)), CUDNN),
    "transposed, grouped": (ConvTranspose2d(8, 7, 7, 8, 3, 3, stride=(2, 2), padding=(1, 1, 0, 0), groups=2), CUDNN),
    "linear": (Linear(96, 64), set(PEERS) - ALONE - {"escoin"}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_peer_that_applies_is_right_and_timed(
    device: Device, toolchain: Toolchain, tmp_path: Path, name: str
) -> None:
    pytest.importorskip("torch")
    spec, applicable = LAYERS[name]
    case = Case(CaseKey(name, 3, 0.9, "float32"), spec, random_weights(spec, 0.9))
    with KernelPool(laptop_settings(tmp_path), MemoryStore(), toolchain, device.arch) as pool:
        session = Session(device, pool, Rules(tuple(PEERS), Peaks(67e12, 4.3e12), sets=4))
        (found,) = session.run([case])
    by_name = {each.contender: each for each in found}
    assert by_name.keys() == {GENERATED, *PEERS}
    reasons = {each.contender: each.reason for each in found if each.microseconds is None}
    assert reasons.keys() == set(PEERS) - applicable, reasons
    assert by_name[GENERATED].relative_error is not None
    assert by_name[GENERATED].relative_error < 1e-6


def test_float16_kernels_meet_cudnn_in_half_precision(device: Device, toolchain: Toolchain, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    spec = Conv2d(8, 12, 10, 16, 3, 3, padding=(1, 1, 1, 1), data_type="float16")
    weights = random_weights(spec, 0.8)
    rounded = type(weights)(*(each.astype("f2").astype("f4") for each in (weights.kernel, weights.bias)))
    case = Case(CaseKey("half", 2, 0.8, "float16"), spec, rounded)
    with KernelPool(laptop_settings(tmp_path), MemoryStore(), toolchain, device.arch) as pool:
        session = Session(device, pool, Rules(tuple(PEERS), Peaks(67e12, 4.3e12), sets=4))
        (found,) = session.run([case])
    assert [(each.contender, each.reason) for each in found] == [(GENERATED, ""), ("cudnn-fp16", "")]
