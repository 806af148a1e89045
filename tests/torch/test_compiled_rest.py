"""The rest of a network, left to PyTorch, under torch.compile."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from codegen.frontend.onnx.export.network import Network, read_network
from codegen.frontend.onnx.reader import read_checkpoint
from farm.bench.networks.torch_dense import DenseLayer
from farm.bundle.reader import BundledLayer
from farm.errors import UsageError
from farm.torch.compiled_rest import CompiledRest, is_compiled
from farm.torch.module import module_of
from tests.unit.onnx_models import constants, info, model, node, save, values

SHAPE = (4, 6, 6)


def network(folder: Path, *between: str) -> tuple[Network, fx.GraphModule]:
    """Two layers, which are played, and operators between them."""
    names = ["a", *(f"b{i}" for i in range(len(between)))]
    more = {"Transpose": {"perm": [0, 1, 3, 2]}}
    steps = [
        node(kind, source, made, **more.get(kind, {}))
        for kind, source, made in zip(between, names, names[1:], strict=False)
    ]
    nodes = [node("Conv", "x v", "a"), *steps, node("Conv", f"{names[-1]} w", "y")]
    tensors = constants(v=values(4, 4, 1, 1), w=values(4, 4, 1, 1))
    checkpoint = read_checkpoint(save(folder, model(nodes, tensors, inputs=[info("x", ("N", *SHAPE))])))
    assert checkpoint.residual_graph is not None
    found = read_network(checkpoint.residual_graph.with_layers(checkpoint.layers))
    bundled = {each.name: BundledLayer(each.name, each.spec, bool(each.residual), ()) for each in checkpoint.layers}
    return found, module_of(found, bundled, {each.name: played(DenseLayer(each)) for each in checkpoint.layers})


def played(dense: DenseLayer) -> Callable[..., Any]:
    return lambda x, residual, _output, gate: dense(x, residual, gate)


def given(batch: int) -> torch.Tensor:
    return torch.from_numpy(values(batch, *SHAPE))


def test_a_rest_of_several_operators_is_compiled_by_default_and_a_small_one_is_not(tmp_path: Path) -> None:
    small, _ = network(tmp_path, "Sin", "Transpose", "Transpose")
    large, _ = network(tmp_path, "Sin", "Cos", "Sin", "Cos")
    assert [is_compiled(each, "auto") for each in (small, large)] == [False, True]
    assert is_compiled(small, "always")
    assert not is_compiled(large, "never")


def test_an_unknown_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="invalid compile_rest 'yes': expected one of 'auto', 'always', 'never'"):
        is_compiled(network(tmp_path)[0], "yes")


def test_a_compiled_rest_computes_the_same_for_any_batch(tmp_path: Path) -> None:
    _, module = network(tmp_path, "Sin", "Cos", "Sigmoid", "Tanh")
    compiled = CompiledRest(module, "aot_eager")
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error")
        for batch in (1, 3, 5, 3):
            torch.testing.assert_close(compiled(given(batch)), module(given(batch)))


def test_a_rest_that_cannot_be_compiled_runs_eager_with_one_warning(tmp_path: Path) -> None:
    _, module = network(tmp_path, "Sin", "Cos")
    tries = []

    def broken(_graph: fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        tries.append(1)
        raise RuntimeError("no compiler here")

    compiled = CompiledRest(module, broken)
    with torch.inference_mode():
        with pytest.warns(UserWarning, match=r'no compiler here.* runs slower now: load it with compile_rest="never"'):
            torch.testing.assert_close(compiled(given(3)), module(given(3)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(compiled(given(5)), module(given(5)))
    assert len(tries) == 1


def test_inputs_at_fault_are_named_and_the_rest_stays_compiled(tmp_path: Path) -> None:
    _, module = network(tmp_path, "Sin", "Cos")
    compiled = CompiledRest(module, "aot_eager")
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UsageError, match="the input 'x' has the shape"):
            compiled(torch.zeros(3, 4, 6, 5))
        with pytest.raises(TypeError, match=r"its input is torch\.float64: convert it"):
            compiled(given(3).double())
        torch.testing.assert_close(compiled(given(3)), module(given(3)))
    assert not compiled.is_eager


def test_a_compiled_rest_within_another_torch_compile_is_one_graph(tmp_path: Path) -> None:
    _, module = network(tmp_path, "Sin", "Cos")
    outer = torch.compile(CompiledRest(module, "aot_eager"), backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        torch.testing.assert_close(outer(given(3)), module(given(3)))


@pytest.mark.parametrize("operator", ["GRU", "LSTM"])
def test_recurrent_layers_stay_one_call_each(operator: str) -> None:
    gates = {"GRU": 3, "LSTM": 4}[operator]
    weights = {"w": values(1, gates * 6, 4), "r": values(1, gates * 6, 6)}
    nodes = [node("Sin", "x", "s"), node(operator, "s w r", "h", hidden_size=6), node("Sin", "h", "y")]
    proto = model(nodes, constants(**weights), inputs=[info("x", (20, "N", 4))])
    module = module_of(read_network(proto.SerializeToString()), {}, {})
    x = torch.from_numpy(values(20, 3, 4))
    wanted = module(x)
    sizes: list[int] = []

    def keep(graph: fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        sizes.append(len(graph.graph.nodes))
        return graph.forward

    with torch.inference_mode():
        compiled = CompiledRest(module, aot_autograd(fw_compiler=keep, inference_compiler=keep))
        torch.testing.assert_close(compiled(x), wanted, rtol=0, atol=0)
    assert max(sizes) < 20


def test_what_computes_a_layers_input_writes_it_contiguous(tmp_path: Path) -> None:
    """Else the layer would copy it."""
    _, module = network(tmp_path, "Sin", "Transpose")
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    with torch.inference_mode():
        torch.compile(module, backend=aot_autograd(fw_compiler=keep, inference_compiler=keep))(given(3))
    [graph] = graphs
    layers = graph.graph.find_nodes(op="call_function", target=torch.ops.farm.layer.default)
    assert [each.args[0].meta["val"].is_contiguous() for each in layers] == [True, True]
