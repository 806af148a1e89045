"""Launches of a compiled layer in PyTorch, on a GPU that only records them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from codegen.ir.launch import NUMBERS, GridSize, Launch
from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, LayerSpec, Linear
from farm.bundle.reader import BundledLayer, Cubin
from farm.cuda import module
from farm.torch import layer as layers
from farm.torch.layer import GpuLayer

CONV = Conv2d(2, 4, 4, 3, 3, 3, padding=(1, 1, 1, 1), epilogue=(AddResidual(), Clip(0, None)))
LINEAR = Linear(8, 4)
STEP = 3 * 4 * 4


@dataclass
class PlayedDriver:
    """Reads what a launch is given, as a kernel does."""

    arguments: tuple[str, ...]
    launches: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, name: str, *given: Any) -> None:
        if name != "cuLaunchKernel":
            return
        _, *sizes, _, stream, pointers, _ = given
        kinds = dict.fromkeys(NUMBERS, "c_int32")
        read = {
            argument: getattr(module.ctypes, kinds.get(argument, "c_uint64")).from_address(pointer).value
            for argument, pointer in zip(self.arguments, pointers, strict=True)
        }
        self.launches.append({"grid": tuple(sizes[:3]), "stream": stream, **read})


def played(
    monkeypatch: pytest.MonkeyPatch, spec: LayerSpec, arguments: tuple[str, ...], images: int = 1
) -> tuple[GpuLayer, PlayedDriver]:
    """A layer of one part, with `images` images in each block of its grid."""
    steps = {"output_step": STEP, "input_step": 2 * 4 * 4}
    given = {name: step for name, step in steps.items() if name in arguments}
    how = Launch("k", (GridSize(2), GridSize(1, images), GridSize()), (32, 1, 1), 0, arguments, **given)
    driver = PlayedDriver(arguments)
    monkeypatch.setattr(module, "call", driver)
    monkeypatch.setattr(layers, "_index", lambda _: 0)
    monkeypatch.setattr(layers, "launching_on", lambda _: nullcontext())
    monkeypatch.setattr(layers.torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=7))
    found = GpuLayer(SimpleNamespace(), BundledLayer("l", spec, True, (Cubin("p", "d", 1, "sm_90", how),)))  # type: ignore[arg-type]
    found._loaded[0] = [[module.LoadedPart(b"code", how)]], []
    return found, driver


def test_the_number_of_images_chooses_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    found, driver = played(monkeypatch, LINEAR, ("input", "output", "images"))
    [[large]], others = found._loaded[0]
    small = module.LoadedPart(b"code", replace(large.launch, grid=(GridSize(5), GridSize(1, 1), GridSize())), 2)
    found._loaded[0] = [[small], [large]], others
    for images in (1, 2, 3, 70):
        found(torch.zeros(images, 8), None)
    assert [each["grid"] for each in driver.launches] == [(5, 1, 1), (5, 2, 1), (2, 3, 1), (2, 70, 1)]


def test_a_kernel_that_waits_itself_may_begin_before_the_one_ahead_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(module, "call", lambda name, *_: called.append(name))
    monkeypatch.setattr(module, "even_bytes_of", lambda _, launch: launch.shared_bytes)
    how = Launch("k", (GridSize(2), GridSize(), GridSize()), (32, 1, 1), 0)
    for waits in (False, True):
        part = module.LoadedPart(b"code", replace(how, waits=waits))
        called.clear()
        part.enqueue({"input": 16, "output": 32, "images": 1}, 7)
        assert called == (["cuLaunchKernelEx"] if waits else ["cuLaunchKernel"])


CONV_ARGUMENTS = ("input", "output", "residual", "images", "output_step")


def test_a_launch_has_the_addresses_of_its_tensors_and_the_numbers_of_its_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, driver = played(monkeypatch, CONV, CONV_ARGUMENTS, images=2)
    x, residual = torch.zeros(5, 2, 4, 4), torch.zeros(5, 3, 4, 4)
    output = layer(x, residual)
    assert output.shape == (5, 3, 4, 4)
    assert driver.launches == [
        {
            "grid": (2, 3, 1),
            "stream": 7,
            "input": x.data_ptr(),
            "output": output.data_ptr(),
            "residual": residual.data_ptr(),
            "images": 5,
            "output_step": STEP,
        }
    ]


def test_each_number_of_images_has_its_own_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, driver = played(monkeypatch, CONV, CONV_ARGUMENTS, images=2)
    for images in (1, 1, 7, 2, 7):
        layer(torch.zeros(images, 2, 4, 4), torch.zeros(images, 3, 4, 4))
    assert [(each["images"], each["grid"][1]) for each in driver.launches] == [(1, 1), (1, 1), (7, 4), (2, 1), (7, 4)]


def test_images_of_an_output_may_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, driver = played(monkeypatch, CONV, CONV_ARGUMENTS)
    whole = torch.zeros(5, 8, 4, 4)
    output = whole[:, 2:5]
    assert layer(torch.zeros(5, 2, 4, 4), torch.zeros(5, 3, 4, 4), output) is output
    [launch] = driver.launches
    assert (launch["output"], launch["output_step"]) == (whole.data_ptr() + 2 * 16 * 4, 8 * 16)


@pytest.mark.parametrize("most", [16, 64])
def test_images_of_an_input_may_lie_apart(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    layer, driver = played(monkeypatch, CONV, (*CONV_ARGUMENTS, "input_step"))
    layer._most_images = most
    whole, own = torch.zeros(20, 8, 4, 4), torch.zeros(20, 2, 4, 4)
    for x in (whole[:, 2:4], own):
        layer(x, torch.zeros(20, 3, 4, 4))
    starts = range(0, 20, most)
    assert [(each["input"], each["input_step"]) for each in driver.launches] == [
        *((whole[i:, 2:].data_ptr(), 8 * 16) for i in starts),
        *((own[i:].data_ptr(), 2 * 16) for i in starts),
    ]


@pytest.mark.parametrize(("spec", "arguments"), [(CONV, CONV_ARGUMENTS), (LINEAR, ("input", "output", "images"))])
def test_slices_of_too_many_images_lie_one_behind_the_other(
    spec: LayerSpec, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, driver = played(monkeypatch, spec, arguments)
    layer._most_images = 16
    x = torch.zeros(50, *spec.input_shape)
    residual = torch.zeros(50, *spec.output_shape) if "residual" in arguments else None
    output = layer(x, residual)
    assert [each["images"] for each in driver.launches] == [16, 16, 16, 2]
    tensors = {"input": x, "output": output} | ({} if residual is None else {"residual": residual})
    for name, tensor in tensors.items():
        assert [each[name] for each in driver.launches] == [tensor[i:].data_ptr() for i in (0, 16, 32, 48)]
