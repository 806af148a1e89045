"""PyTorch models as pruning leaves them, exported to ONNX once for any number of state_dicts."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.utils import prune

from farm.errors import UsageError, printable
from farm.extras import way_out

ORIGINAL, MASK = "_orig", "_mask"
"""Endings that torch.nn.utils.prune gives to a pruned parameter's names."""
SHOWN = 3
"""Names in a message."""

State = Mapping[str, torch.Tensor]
"""A state_dict."""
Example: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
"""The input of a model, or all its inputs."""


def inputs_of(example: Example) -> tuple[torch.Tensor, ...]:
    """The inputs in order. Raises UsageError without inputs, or for an input that is not a tensor."""
    inputs = (example,) if isinstance(example, torch.Tensor) else tuple(example)
    if not inputs or not all(isinstance(each, torch.Tensor) for each in inputs):
        raise UsageError("the example is not a tensor or a sequence of tensors: give what the model is called with")
    return inputs


class Exported:
    """A model in ONNX whose weights can be replaced by those of a state_dict."""

    def __init__(self, model: nn.Module, example: Example) -> None:
        """Exports a copy of the model on the CPU, in eval mode, with its masks made permanent.

        The batch stays open if the model leaves it open. Raises UsageError for a model that does not take the example
        or that PyTorch cannot export.
        """
        self.name = type(model).__name__
        args = tuple(each.detach().cpu() for each in inputs_of(example))
        self._model = permanent_copy(model)
        self._tensors = self._model.state_dict()
        try:
            with torch.inference_mode():
                self._model(*args)
        except Exception as error:  # the model's own code may raise anything
            shapes = ", ".join(str(list(each.shape)) for each in args)
            raise UsageError(
                f"{self.name} does not take the example {shapes}: {reason_of(error)}. Give inputs that the model takes."
            ) from error
        with quiet("torch.onnx"):
            self._program = self._export(args)
        # Under another name, every state_dict would silently get this model's values.
        if renamed := sorted(_read(self._program) & {*self._tensors} - {*self._program.model.graph.initializers}):
            raise UsageError(
                f"PyTorch's exporter gives {printable(renamed[0])} of {self.name} another name: rename it in the model"
            )

    def _export(self, args: tuple[torch.Tensor, ...]) -> Any:
        """The program before it is optimised, in which each tensor of the state_dict has its name."""
        images = len(args[0]) if args[0].ndim else 0
        batched = [each.ndim > 0 and len(each) == images for each in args]
        single = images == 1  # the exporter would take this size for a constant
        several = (torch.cat([each, each]) if of and single else each for each, of in zip(args, batched, strict=True))
        try:
            program = _onnx(
                self._model, tuple(several), tuple({0: torch.export.Dim.AUTO} if of else None for of in batched)
            )
            sizes = [size for each in program.model.graph.inputs for size in each.shape]
            if not single or not all(isinstance(size, int) for size in sizes):
                return program
        except torch.onnx.OnnxExporterError:
            pass  # the model fixes its batch, or cannot be exported at all
        try:
            return _onnx(self._model, args, None)
        except torch.onnx.OnnxExporterError as error:
            raise UsageError(
                f"PyTorch cannot export {self.name} to ONNX: {reason_of(error.__cause__ or error)}. "
                "Change the model until torch.export.export takes it."
            ) from error

    def write(self, path: Path, state: State | None, name: str) -> None:
        """Writes the ONNX file with the weights of a state_dict, by default the model's own.

        Raises UsageError for a state_dict of another model, which the message calls by its name.
        """
        used = [key for key in self._tensors if key in self._program.model.graph.initializers]
        state = self._tensors if state is None else self._checked(state, used, name)
        with quiet("torch.onnx"):
            self._program.apply_weights({key: state[key].detach().to("cpu", self._tensors[key].dtype) for key in used})
            # The optimiser folds weights, so it works on a copy.
            optimised = torch.onnx.ONNXProgram(self._program.model.clone(), self._program.exported_program)
            optimised.optimize()
            optimised.save(path)

    def _checked(self, state: State, used: Sequence[str], name: str) -> State:
        """The state_dict with its masks made permanent. Raises UsageError."""
        if not isinstance(state, Mapping):
            raise UsageError(f"the state_dict of {name} is a {type(state).__name__}: give the dict of a state_dict()")
        state, own = permanent(state), self._tensors
        unfit = [key for key in used if key in state and getattr(state[key], "shape", None) != own[key].shape]
        for keys, fault in (
            ([key for key in used if key not in state], "lacks"),
            ([key for key in state if key not in own], f"has names that {self.name} lacks:"),
            (unfit, "has other shapes of"),
        ):
            if keys:
                more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
                shown = printable(", ".join(keys[:SHOWN]))
                raise UsageError(f"the state_dict of {name} {fault} {shown}{more}: give one of this model")
        return state


def permanent(state: State) -> dict[str, torch.Tensor]:
    """A state_dict in which `weight_orig` and `weight_mask` of torch.nn.utils.prune are the pruned `weight`."""
    found = dict(state)
    for name in [key.removesuffix(MASK) for key in state if key.endswith(MASK)]:
        if name + ORIGINAL in state:
            found[name] = found.pop(name + ORIGINAL) * found.pop(name + MASK)
    return found


def permanent_copy(model: nn.Module) -> nn.Module:
    """A copy on the CPU in eval mode, with its masks made permanent. Raises UsageError."""
    # A pruned parameter is computed before each call, and PyTorch does not copy what has a gradient's history.
    computed = {
        id(each): each.detach() for module in model.modules() for each in vars(module).values() if _has_history(each)
    }
    try:
        own = copy.deepcopy(model, computed).cpu().eval()
    except Exception as error:  # the model's own code may raise anything
        raise UsageError(
            f"{type(model).__name__} cannot be copied: {reason_of(error)}. Make copy.deepcopy work."
        ) from error
    for module in own.modules():
        for hook in list(module._forward_pre_hooks.values()):
            if isinstance(hook, prune.BasePruningMethod):
                prune.remove(module, hook._tensor_name)
    return own


def _has_history(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _onnx(model: nn.Module, args: tuple[torch.Tensor, ...], shapes: object) -> Any:
    try:
        return torch.onnx.export(model, args, dynamo=True, optimize=False, verbose=False, dynamic_shapes=shapes)
    except ModuleNotFoundError as error:
        raise UsageError(f"PyTorch's exporter needs {error.name}: {way_out('torch')}") from error


def _read(program: Any) -> set[str]:
    """Names of the parameters and buffers that inference reads."""
    signature = program.exported_program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    return {names[node.name] for node in program.exported_program.graph.nodes if node.name in names and node.users}


@contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Without the notes on itself that a part of PyTorch logs, and without warnings."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def reason_of(error: BaseException) -> str:
    """The first line of an error's message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return printable(lines[0]).rstrip(".")
