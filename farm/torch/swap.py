"""Swap compiled layers into a PyTorch model, in place of its convolutions and linear layers."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx, nn
from torch.fx.node import Argument

from codegen.ir.layer_spec import AddResidual, is_bounded, is_gated
from farm.bundle.reader import Bundle, BundledLayer
from farm.errors import UsageError
from farm.torch.layer import Compute, forget, layers_on, register
from farm.torch.modules import digests_of, is_norm, is_swappable, module_difference, same_step, step_of

IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
SHOWN = 3
"""Most names in a message."""


@dataclass(frozen=True)
class Swapped:
    """A model with compiled layers, and which modules were replaced."""

    module: fx.GraphModule
    """The changed model; it has the original's inputs and outputs, and shares its other modules."""
    replaced: Mapping[str, str]
    """Name of the replaced module, by the name of the compiled layer."""
    left: Mapping[str, str]
    """Why a convolution or linear layer was not replaced, by its name."""


def swap(model: nn.Module, bundle: Path | str, device: torch.device | str = "cuda", *, strict: bool = True) -> Swapped:
    """Replace modules of a model by the compiled layers of a bundle, which `farm fetch` wrote of its ONNX export.

    A layer replaces the module with its weights, and the normalisation, activation and addition that are folded into
    the layer. The model must be in eval mode and on the device; it is traced by torch.fx and not changed. For inference
    only, without gradients. Raises UsageError for a model that cannot be traced or is in training mode, for an invalid
    bundle and, if `strict`, for a layer whose weights no module has. Raises DeviceError without a GPU.
    """
    opened = Bundle(bundle)
    return swapped(model, opened, layers_on(torch.device(device), opened), strict=strict)


def swapped(model: nn.Module, bundle: Bundle, compute: Mapping[str, Compute], *, strict: bool = True) -> Swapped:
    """Replace modules of a model as `swap` does, by given functions."""
    if model.training:
        raise UsageError("the model is in training mode, but compiled layers are for inference: call its eval() first")
    try:
        traced = fx.symbolic_trace(model)
    except Exception as error:  # tracing runs the model's own code, which may raise anything
        raise UsageError(
            f"torch.fx cannot trace the model ({error}): farm.torch.load runs the whole network of the bundle instead"
        ) from error
    return _Swap(traced, bundle, compute).result(strict)


@dataclass(frozen=True)
class _Match:
    """The nodes that a layer replaces: convolution or product first, then those folded into it, in order."""

    layer: BundledLayer
    nodes: tuple[fx.Node, ...]
    residual: fx.Node | None


class _Swap:
    """The state of one call of `swapped`."""

    def __init__(self, traced: fx.GraphModule, bundle: Bundle, compute: Mapping[str, Compute]) -> None:
        self._traced = traced
        self._modules = dict(traced.named_modules())
        self._bundle = bundle
        self._compute = compute
        self._order = {node: i for i, node in enumerate(traced.graph.nodes)}
        self._open = dict(bundle.layers)
        """Layers without a match so far."""
        self._by_digest: dict[str, list[str]] = {}
        for name, layer in bundle.layers.items():
            self._by_digest.setdefault(layer.weights_digest, []).append(name)
        self._known: set[str] = set()
        """Layers whose weights a module has."""
        self._made: dict[fx.Node, fx.Node] = {}
        """Replacement of a match's last node, which may be the residual of another match."""

    def result(self, strict: bool) -> Swapped:
        matches: list[_Match] = []
        left: dict[str, str] = {}
        replaced: dict[str, str] = {}
        for node in self._traced.graph.nodes:
            if node.op == "call_module" and is_swappable(self._modules[node.target]):
                found = self._match(node)
                if isinstance(found, str):
                    left[node.target] = found
                else:
                    matches.append(found)
                    replaced[found.layer.name] = node.target
        # No module has the weights of a layer with a normalisation folded in before it (a bounded spec).
        unknown = [
            name
            for name, layer in self._bundle.layers.items()
            if name not in self._known and not is_bounded(layer.spec)
        ]
        if unknown and strict:
            more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
            raise UsageError(
                f"no module of the model has the weights of {', '.join(unknown[:SHOWN])}{more} in {self._bundle.path}: "
                "export and compile the model as it is now, or leave them out with strict=False"
            )
        numbers = tuple(self._replace(match) for match in matches)
        self._traced.delete_all_unused_submodules()
        self._traced.recompile()
        weakref.finalize(self._traced, _forget_all, numbers)
        return Swapped(self._traced, replaced, left)

    def _match(self, node: fx.Node) -> _Match | str:
        """The match of a module's node, or the reason for having none."""
        module = self._modules[str(node.target)]
        behind = _only_user(node)
        norm = self._modules.get(str(behind.target)) if behind is not None and behind.op == "call_module" else None
        reason = "the bundle has no layer with its weights"
        for folded in ([norm] if is_norm(norm) else []) + [None]:
            for digest in digests_of(module, folded):
                for name in self._by_digest.get(digest, ()):
                    self._known.add(name)
                    if name not in self._open:
                        reason = f"layer {name} has its weights, but replaces another module already"
                        continue
                    layer = self._open[name]
                    if is_gated(layer.spec):
                        reason = f"layer {name} has its weights, but multiplies its input by gates too"
                        continue
                    begun = [node, behind] if folded is not None and behind is not None else [node]
                    found = module_difference(module, layer.spec) or self._completed(layer, begun)
                    if isinstance(found, _Match):
                        del self._open[name]
                        return found
                    reason = f"layer {name} {found}"
        return reason

    def _completed(self, layer: BundledLayer, nodes: list[fx.Node]) -> _Match | str:
        """The match extended by the nodes of the layer's epilogue, or the reason for having none."""
        residual: fx.Node | None = None
        for step in layer.spec.epilogue:
            node = _only_user(nodes[-1])
            if node is None:
                return f"computes {type(step).__name__} too, but the model uses the input of that elsewhere"
            found = step_of(node, self._modules)
            if isinstance(step, AddResidual) and isinstance(found, AddResidual):
                first, second = node.args[:2]
                residual = second if first is nodes[-1] else first
                if not isinstance(residual, fx.Node) or residual is nodes[-1]:
                    return "adds another tensor, but the model adds a number or the tensor itself"
                if residual is first and _is_in_place(node, self._modules) and self._is_read_after(residual, node):
                    return f"would not add into {residual}, but the model reads it later"
            elif not same_step(step, found):
                return f"computes {type(step).__name__} next, but the model computes {node.target}"
            nodes = [*nodes, node]
        x = _input(nodes[0])
        inputs = [x, *([residual] if residual is not None else [])]
        for each in inputs:
            if isinstance(each, fx.Node) and self._is_changed(each, nodes[0], nodes[-1]):
                return f"would read {each}, which the model changes in place before the layer's end"
        return _Match(layer, tuple(nodes), residual)

    def _is_changed(self, tensor: fx.Node, first: fx.Node, last: fx.Node) -> bool:
        """Whether a node between two nodes writes into the tensor."""
        between = [user for user in tensor.users if self._order[first] < self._order[user] < self._order[last]]
        return any(_is_in_place(user, self._modules) for user in between)

    def _is_read_after(self, tensor: fx.Node, node: fx.Node) -> bool:
        return any(self._order[user] > self._order[node] for user in tensor.users)

    def _replace(self, match: _Match) -> int:
        graph, last = self._traced.graph, match.nodes[-1]
        number = register(match.layer, self._compute[match.layer.name])
        with graph.inserting_after(last):
            residual = None if match.residual is None else self._made.get(match.residual, match.residual)
            arguments = (_input(match.nodes[0]), residual, number)
            made = graph.call_function(torch.ops.farm.layer.default, arguments)
        last.replace_all_uses_with(made)
        self._made[last] = made
        for node in reversed(match.nodes):
            graph.erase_node(node)
        return number


def _input(node: fx.Node) -> Argument:
    """Input of a module's call."""
    return node.args[0] if node.args else node.kwargs["input"]


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_in_place(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    if node.target in IN_PLACE:
        return True
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or bool(node.kwargs.get("inplace"))


def _forget_all(numbers: Sequence[int]) -> None:
    for number in numbers:
        forget(number)
