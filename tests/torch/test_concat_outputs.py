"""Layers write what a Concat joins at once into its output, and the values stay those of the model."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch._inductor.utils import run_and_get_code

from codegen.frontend.onnx.export.network import read_network
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Layer
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import Conv2d
from farm.bench.networks.torch_dense import DenseLayer
from farm.bundle.reader import BundledLayer, Cubin
from farm.torch.layer import forget, register
from farm.torch.module import module_of
from farm.torch.operators.shaping import concat
from tests.samples import LAUNCH
from tests.torch.test_networks import played
from tests.unit.onnx_models import constants, info, model, node, save, values

PLACED = Launch(**{**vars(LAUNCH), "arguments": (*LAUNCH.arguments, "output_step"), "output_step": 64})
READING = Launch(**{**vars(PLACED), "arguments": (*PLACED.arguments, "input_step"), "input_step": 64})


def conv(x: str, weights: str, y: str, size: int = 1) -> onnx.NodeProto:
    return node("Conv", f"{x} {weights}", y, y, pads=[size // 2] * 4)


def network(name: str) -> onnx.ModelProto:
    """A network of x [N, 3, 8, 8]."""
    nodes, outputs = NETWORKS[name]
    read = {each for made in nodes for each in made.input}
    channels = {"a": 3, "b": 3, "c": 9, "d": 4, "e": 8, "f": 13, "g": 8, "h": 4}
    kernels = {"a": 4, "b": 5, "c": 6, "d": 6, "e": 5, "f": 6, "g": 4, "h": 4}
    sizes = {"b": 3, "d": 3, "h": 3}
    shapes = {f"w{n}": (kernels[n], channels[n], sizes.get(n, 1), sizes.get(n, 1)) for n in kernels if f"w{n}" in read}
    tensors = constants(**{key: values(*shape, seed=i) for i, (key, shape) in enumerate(shapes.items())})
    proto = model(nodes, tensors, inputs=[info("x", ("N", 3, 8, 8))], output=outputs[0])
    proto.graph.output.extend(info(each, None) for each in outputs[1:])
    return proto


AB = [conv("x", "wa", "a"), conv("x", "wb", "b", 3)]
JOINED = node("Concat", "a b", "ab", axis=1)
NETWORKS: dict[str, tuple[list[onnx.NodeProto], list[str]]] = {
    "two layers": ([*AB, JOINED, node("Relu", "ab", "y")], ["y"]),
    "counted from the end": ([*AB, node("Concat", "b a", "ab", axis=-3), node("Relu", "ab", "y")], ["y"]),
    "a layer after them": ([*AB, JOINED, conv("ab", "wc", "y")], ["y"]),
    "the output of the model": ([*AB, JOINED], ["ab"]),
    "a part that a layer reads too": (
        [*AB, conv("a", "wd", "d", 3), JOINED, conv("ab", "wc", "c"), node("Concat", "c d", "y", axis=1)],
        ["y"],
    ),
    "a tensor that no layer writes": (
        [AB[0], node("Relu", "x", "r"), node("Concat", "r a", "ra", axis=1), node("Sigmoid", "ra", "y")],
        ["y"],
    ),
    "each layer reads all before it": (
        [
            AB[1],
            node("Sigmoid", "x", "s"),
            node("Concat", "s b", "first", axis=1),
            node("Relu", "first", "r1"),
            conv("r1", "we", "e"),
            node("Concat", "s b e", "second", axis=1),
            node("Relu", "second", "r2"),
            conv("r2", "wf", "f"),
            node("Concat", "s b e f", "y", axis=1),
        ],
        ["y"],
    ),
    "halves of a layer": (
        [
            AB[0],
            conv("a", "wd", "d", 3),
            node("Split", "a", "left right", axis=1),
            node("Relu", "d", "rd"),
            node("Concat", "left right rd", "y", axis=1),
        ],
        ["y"],
    ),
    "halves of a layer that nothing else reads": (
        [
            conv("x", "wa", "a"),
            node("Split", "a", "left right", axis=1),
            node("Sigmoid", "left", "s"),
            conv("x", "wb", "b", 3),
            node("Concat", "left right b", "y", axis=1),
            node("Concat", "s b", "z", axis=1),
        ],
        ["y", "z"],
    ),
}  # fmt: skip
WRITTEN = {
    "two layers": (2, 0, 0),
    "counted from the end": (2, 0, 0),
    "a layer after them": (2, 0, 0),
    "the output of the model": (2, 0, 0),
    "a part that a layer reads too": (4, 0, 0),
    "a tensor that no layer writes": (1, 1, 0),
    "each layer reads all before it": (3, 1, 0),
    "halves of a layer": (0, 0, 1),
    "halves of a layer that nothing else reads": (2, 0, 1),
}
"""Numbers of layers that write among others, of tensors copied there, and of Concats left."""


def module_read(
    folder: Path,
    proto: onnx.ModelProto,
    launch: Launch = PLACED,
    *,
    dense: bool = False,
    read: list[torch.Tensor] | None = None,
) -> torch.fx.GraphModule:
    """The module, and in `read` what its layers were given."""
    checkpoint = read_checkpoint(save(folder, proto))
    assert checkpoint.residual_graph is not None
    made = Cubin("path", "0" * 64, 0, "sm_80", launch)
    layers = {each.name: BundledLayer(each.name, each.spec, bool(each.residual), (made,)) for each in checkpoint.layers}

    def computed(layer: Layer, x: torch.Tensor, *more: torch.Tensor | None) -> torch.Tensor:
        if read is not None:
            read.append(x)
        return played(layer, x, *more)

    compute = {each.name: DenseLayer(each) if dense else partial(computed, each) for each in checkpoint.layers}
    return module_of(read_network(checkpoint.residual_graph.with_layers(checkpoint.layers)), layers, compute)


def calls(module: torch.fx.GraphModule) -> tuple[int, int, int]:
    """The numbers that WRITTEN lists, of this module."""
    found = Counter(each.target for each in module.graph.nodes if each.op == "call_function")
    return found[torch.ops.farm.write_layer.default], found[torch.ops.farm.place.default], found[concat]


def expected(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def outputs(found: object) -> list[np.ndarray]:
    return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_values_are_those_of_the_model_and_nothing_is_joined_that_lies_side_by_side(
    name: str, images: int, tmp_path: Path
) -> None:
    proto = network(name)
    module = module_read(tmp_path, proto)
    x = values(images, 3, 8, 8, seed=9)
    with torch.inference_mode():
        found = outputs(module(torch.from_numpy(x)))
    for one, other in zip(found, expected(proto, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert calls(module) == WRITTEN[name]


def test_a_concat_is_no_copy_its_output_is_the_memory_that_the_layers_wrote(tmp_path: Path) -> None:
    module = module_read(tmp_path, network("the output of the model"))
    written = []

    class Watch(torch.fx.Interpreter):
        def call_function(self, target, args, kwargs):
            if target is torch.ops.farm.write_layer.default:
                written.append((args[3].data_ptr(), args[3].stride(0)))
            return super().call_function(target, args, kwargs)

    output = Watch(module).run(torch.from_numpy(values(2, 3, 8, 8)))
    assert output.is_contiguous()
    assert written == [(output[:, first:].data_ptr(), 9 * 64) for first in (0, 4)]


def dense_block() -> onnx.ModelProto:
    """A block of x [N, 3, 8, 8]: a layer reads another's output beside that one's input, both normalised before."""
    norms = constants(
        **{f"{name}{size}": np.abs(values(size, seed=i)) for size in (3, 7) for i, name in enumerate("stmv")}
    )
    nodes = [node("Identity", "x", "p")]
    for source, size, made in (("p", 3, "a"), ("pa", 7, "b")):
        nodes += [node("BatchNormalization", f"{source} s{size} t{size} m{size} v{size}", f"n{made}")]
        nodes += [node("Relu", f"n{made}", f"r{made}"), conv(f"r{made}", f"w{made}", made)]
        names = "p a" if made == "a" else "p a b"
        nodes += [node("Concat", names, names.replace(" ", ""), axis=1)]
    nodes += [node("Sigmoid", "pab", "y")]
    kernels = constants(wa=values(4, 3, 1, 1), wb=values(5, 7, 1, 1))
    return model(nodes, [*norms, *kernels], inputs=[info("x", ("N", 3, 8, 8))], output="y")


@pytest.mark.parametrize("images", [1, 3])
def test_a_layer_with_a_normalisation_before_it_reads_a_part_of_a_concat_where_it_lies(
    tmp_path: Path, images: int
) -> None:
    proto = dense_block()
    x = values(images, 3, 8, 8)
    for launch, step in ((READING, 12 * 64), (PLACED, 7 * 64)):
        read: list[torch.Tensor] = []
        found = outputs(module_read(tmp_path, proto, launch, read=read)(torch.from_numpy(x)))
        np.testing.assert_allclose(found[0], expected(proto, x)[0], rtol=1e-4, atol=1e-5)
        assert [each.shape[1] for each in read] == [3, 7]
        assert images == 1 or read[1].stride(0) == step


def test_an_input_whose_images_begin_unaligned_is_copied() -> None:
    layer = BundledLayer("l", Conv2d(2, 3, 3, 4, 1, 1, bounded=True), False, (Cubin("p", "0", 0, "sm_80", READING),))
    read: list[torch.Tensor] = []

    def compute(x: torch.Tensor, *_: torch.Tensor | None) -> torch.Tensor:
        read.append(x)
        return x.new_empty(2, 4, 3, 3)

    number = register(layer, compute)
    for channels in (4, 5):  # 36 elements, and 45
        torch.ops.farm.layer(torch.zeros(2, channels, 3, 3)[:, :2], None, number)
    forget(number)
    assert [each.is_contiguous() for each in read] == [False, True]


def test_layers_without_code_for_it_write_tensors_of_their_own(tmp_path: Path) -> None:
    proto = network("two layers")
    for module in (module_read(tmp_path, proto, LAUNCH), module_read(tmp_path, proto, dense=True)):
        assert calls(module) == (0, 0, 1)
        x = values(2, 3, 8, 8)
        np.testing.assert_allclose(outputs(module(torch.from_numpy(x)))[0], expected(proto, x)[0], rtol=1e-4, atol=1e-5)


LEFT = {
    "an output of the model": ([*AB, JOINED], ["ab", "a", "b"]),
    "rows": ([*AB, conv("x", "wa", "g"), node("Concat", "a g", "y", axis=2)], ["y", "b"]),
    "one layer twice": ([AB[0], node("Concat", "a a", "y", axis=1)], ["y"]),
    "more copies than one": (
        [AB[0], node("Relu", "x", "r"), node("Sigmoid", "x", "s"), node("Concat", "r a s", "y", axis=1)],
        ["y"],
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_concat_that_would_gain_nothing_is_left(name: str, tmp_path: Path) -> None:
    nodes, names = LEFT[name]
    tensors = constants(wa=values(4, 3, 1, 1), wb=values(5, 3, 3, 3))
    proto = model(nodes, tensors, inputs=[info("x", ("N", 3, 8, 8))], output=names[0])
    proto.graph.output.extend(info(each, None) for each in names[1:])
    module = module_read(tmp_path, proto)
    assert calls(module) == (0, 0, 1)
    x = values(2, 3, 8, 8)
    for one, other in zip(outputs(module(torch.from_numpy(x))), expected(proto, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_one_dimensional_layers_write_side_by_side_too(tmp_path: Path) -> None:
    nodes = [node("Conv", "x u", "a"), node("Conv", "x v", "b"), node("Concat", "a b", "y", axis=1)]
    proto = model(nodes, constants(u=values(4, 3, 1), v=values(5, 3, 1)), inputs=[info("x", ("N", 3, 8))])
    module = module_read(tmp_path, proto)
    x = values(2, 3, 8)
    np.testing.assert_allclose(outputs(module(torch.from_numpy(x)))[0], expected(proto, x)[0], rtol=1e-4, atol=1e-5)
    assert calls(module) == (2, 0, 0)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # within torch
def test_a_compiled_or_exported_network_computes_the_same(tmp_path: Path) -> None:
    module = module_read(tmp_path, network("each layer reads all before it"))
    x = torch.from_numpy(values(2, 3, 8, 8))
    with torch.inference_mode():
        wanted = module(x)
        torch.testing.assert_close(torch.compile(module, backend="aot_eager")(x), wanted)
    program = torch.export.export(module, (x,))
    torch.testing.assert_close(program.module()(x), wanted)
    torch.testing.assert_close(program.run_decompositions().module()(x), wanted)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # within torch
def test_under_torch_compile_too_layers_and_copies_write_one_tensor(tmp_path: Path) -> None:
    nodes = [node("Conv", "x u", "a"), node("Concat", "x a", "y", axis=1)]  # nothing to compile, which takes long
    module = module_read(tmp_path, model(nodes, constants(u=values(16, 3, 1, 1)), inputs=[info("x", ("N", 3, 8, 8))]))
    assert calls(module) == (1, 1, 0)
    with torch.inference_mode():
        _, [code] = run_and_get_code(torch.compile(module), torch.from_numpy(values(2, 3, 8, 8)))
    assert len(re.findall(r"= empty_strided_cpu\(\(2, 19, 8, 8\)", code)) == 1
