"""Networks under torch.compile, which fuses the operators between compiled layers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import fx, nn

from codegen.frontend.onnx.export.network import Network
from farm.errors import UsageError, printable
from farm.torch.operators.host_values import host_values
from farm.torch.operators.table import OPERATORS

CompileRest = Literal["auto", "always", "never"]
"""Whether torch.compile compiles what a network leaves to PyTorch; "auto": if it is more than a few operators."""
LEAST_OPERATORS = 4
"""Least number of operators with kernels of their own from which "auto" compiles: fewer gain little by fusion."""
_VIEWS = frozenset({"Cast", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that launch no kernel, or a copy in front of a layer."""


_EAGER = frozenset({OPERATORS["GRU"], OPERATORS["LSTM"]})
"""Operators that stay eager: torch.compile unrolls each step of a sequence, and lets go of cuDNN."""


def is_compiled(network: Network, choice: str) -> bool:
    """Whether the rest of a network is compiled. Raises UsageError for an unknown choice."""
    if choice not in get_args(CompileRest):
        known = ", ".join(map(repr, get_args(CompileRest)))
        raise UsageError(f"invalid compile_rest {printable(repr(choice))}: expected one of {known}")
    on_host = host_values(network)
    launching = [
        node
        for node in network.nodes
        if not node.layer and node.operator not in _VIEWS and not on_host.intersection(node.outputs)
    ]
    return choice == "always" or (choice == "auto" and len(launching) >= LEAST_OPERATORS)


class CompiledRest(nn.Module):
    """A network under torch.compile, which compiles at the first call with a shape; eager if it cannot, with a warning.

    Under another torch.compile, calls go to the network itself. A capture compiles nothing.
    """

    def __init__(self, network: fx.GraphModule, backend: str | Callable[..., Any] = "inductor") -> None:
        from torch._dynamo.exc import TorchDynamoException  # slow to import

        super().__init__()
        for node in network.graph.nodes:
            if node.target in _EAGER:
                node.target = torch.compiler.disable(node.target)
        network.recompile()
        self.network = network
        self._failure = TorchDynamoException
        self._compiled = torch.compile(network, backend=backend)
        self.is_eager = False
        """Whether the rest is not compiled, as that failed."""

    def forward(self, *inputs: torch.Tensor) -> Any:
        if self.is_eager or torch.compiler.is_compiling():
            return self.network(*inputs)
        try:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                with torch.compiler.set_stance("eager_on_recompile"):
                    return self._compiled(*inputs)
            return self._compiled(*inputs)
        except self._failure as error:
            output = self.network(*inputs)  # first, as it raises if the inputs are at fault
            self.is_eager = True
            reason = " ".join(str(error).split())[:200]
            warnings.warn(
                f"torch.compile cannot compile the rest of the network ({reason}), which runs slower now: "
                'load it with compile_rest="never", or mend the cause',
                stacklevel=2,
            )
            return output
