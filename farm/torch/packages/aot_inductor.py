"""A bundle as an AOTInductor package: one .pt2 file with the compiled layers, which runs without Python.

The C runtime runs subgraphs of the network. AOTInductor makes C++ of the operators between them, which calls each
subgraph by a C function. An object file with this function, the C runtime and the subgraphs is linked into the
package's code.
"""

from __future__ import annotations

import shlex
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile, ZipInfo

import torch
from torch import nn

import farm.runtime
from codegen.errors import DeviceError
from codegen.frontend.onnx.export.network import Network
from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.toolchain.tools import ToolLimits, run_tool
from farm.bundle.reader import Bundle
from farm.errors import UsageError
from farm.runtime.plan_files import planned_files
from farm.torch.export import quiet, reason_of
from farm.torch.layer import no_gpu_way_out, output_shape
from farm.torch.module import module_of
from farm.torch.packages.subgraphs import Subgraph, divide

OBJECT = "subgraphs.o"
"""Name of the object file."""
MOST_BYTES = 2**30
"""Most bytes of subgraphs in a package: its code must reach all of it by 32-bit offsets."""
SUFFIX = ".pt2"
"""Suffix that PyTorch demands of a package."""
WAY_OUT = "load the bundle with farm.torch, or with the C runtime"
LEAST_BATCH = 2
"""Least batch of the traced call: torch.export takes a size of one for a constant."""
_SHIMS, _LIBRARIES = "custom_ops_to_c_shims", "custom_op_libs"
"""Settings of AOTInductor."""
_MODE = "lite"
"""AOTInductor's mode, since PyTorch 2.10, in which operators give PyTorch's own bits; it would fuse them otherwise."""
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-r")
"""One object file, whose functions only the package's own code can call."""

_OPERATORS = torch.library.Library("farm", "FRAGMENT")
_OPERATORS.define("subgraph(Tensor[] inputs, int number, SymInt[] sizes) -> Tensor[]")


def _fake(inputs: Sequence[torch.Tensor], _number: int, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Outputs for `sizes`: for each output its number of dimensions and those."""
    made = []
    while sizes:
        end = 1 + sizes[0]
        made.append(inputs[0].new_empty(sizes[1:end]))
        sizes = sizes[end:]
    return made


torch.library.register_fake("farm::subgraph", _fake)


class SubgraphCall(nn.Module):
    """A call of the subgraph with this number in the package, for torch.export; it does not run in Python."""

    def __init__(self, subgraph: Subgraph, number: int) -> None:
        super().__init__()
        self._subgraph = subgraph
        self._number = number

    def forward(self, *inputs: torch.Tensor | None) -> torch.Tensor | list[torch.Tensor]:
        given = [each for each in inputs if each is not None]
        sizes = [size for shape in self._shapes(given[0].shape) for size in (len(shape), *shape)]
        made: list[torch.Tensor] = torch.ops.farm.subgraph.default(given, self._number, sizes)
        return made[0] if len(made) == 1 else made

    def _shapes(self, shape: Sequence[int]) -> list[Sequence[int]]:
        """Shapes of the outputs, for that of the first input."""
        if self._subgraph.layer is not None:
            return [output_shape(self._subgraph.layer, shape)]
        plan = self._subgraph.planned.plan
        return [port.shape_of(shape[0] // plan.inputs[0].rows) for port in plan.outputs]


@dataclass(frozen=True)
class Package:
    """A written package."""

    path: Path
    batch: int | None
    """The only batch size that it takes; None if it takes any."""
    inputs: tuple[Tensor, ...]
    """Named as in the model; an open size is None."""
    outputs: tuple[Tensor, ...]


def write_package(bundle: Bundle, path: Path, device: str = "cuda") -> Package:
    """Write the network of a bundle as a .pt2 package for GPUs of all its architectures; needs g++.

    Inputs must have no open sizes but the batch. Tests give another device, on which a driver is played. Raises
    DeviceError without a GPU, UsageError for a network that PyTorch cannot export and for an older PyTorch, BundleError
    for an invalid bundle, ToolError and ToolchainError if the C compiler fails or is missing.
    """
    from torch import _inductor

    if _MODE not in _inductor.list_mode_options():
        raise UsageError(
            f"PyTorch {torch.__version__} makes no packages with PyTorch's own bits: install 2.10 or later"
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "AOTInductor needs this machine's GPU, and PyTorch finds none: "
            f"{no_gpu_way_out()}. The C runtime runs bundles without an export"
        )
    fresh = path.absolute().with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    with TemporaryDirectory(prefix="farm-") as folder, quiet("torch._inductor"):
        network, subgraphs = divide(bundle.network, {name: each.spec for name, each in bundle.layers.items()})
        program, batch = _exported(bundle, network, subgraphs, device)
        _build(bundle, tuple(subgraphs.values()), device, Path(folder))
        made = _compiled(bundle, program, Path(folder, path.stem + SUFFIX), device)
        try:
            fresh.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made, fresh)
            fresh.replace(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}): name another file") from None
        finally:
            fresh.unlink(missing_ok=True)
    signature = program.graph_signature
    return Package(
        path,
        batch,
        _tensors(program, signature.user_inputs, network.inputs),
        _tensors(program, signature.user_outputs, network.outputs),
    )


def _exported(
    bundle: Bundle, network: Network, subgraphs: Mapping[str, Subgraph], device: str
) -> tuple[torch.export.ExportedProgram, int | None]:
    """The network with calls of its subgraphs, and the only batch size that it takes, if there is one."""
    if not all(isinstance(size, int) for each in network.inputs for size in each.shape[1:]):
        raise UsageError(f"{bundle.path} has open sizes besides the batch: compile the model with --input-shape")
    calls = {name: SubgraphCall(each, number) for number, (name, each) in enumerate(subgraphs.items())}
    module = module_of(network, bundle.layers, calls).to(device).eval()
    fixed = [each.shape[0] for each in network.inputs if each.shape and isinstance(each.shape[0], int)]
    batch = bundle.manifest.batches[-1]
    if not fixed:
        program = _traced(bundle, module, _example(network.inputs, max(batch, LEAST_BATCH), device), is_open=True)
        if program.range_constraints:  # else something in the network fixes the batch
            return program, None
    program = _traced(bundle, module, _example(network.inputs, batch, device), is_open=False)
    return program, next(iter(fixed), batch)


def _example(inputs: Sequence[Tensor], batch: int, device: str) -> tuple[torch.Tensor, ...]:
    """Zeros for each input."""
    return tuple(
        torch.zeros(
            [size if isinstance(size, int) else batch for size in each.shape],
            dtype=getattr(torch, each.dtype),
            device=device,
        )
        for each in inputs
    )


def _traced(
    bundle: Bundle, module: nn.Module, example: tuple[torch.Tensor, ...], *, is_open: bool
) -> torch.export.ExportedProgram:
    """The graph of a call, with an open batch if asked and possible. Raises UsageError."""
    sizes = tuple({0: torch.export.Dim.AUTO} if each.ndim else None for each in example) if is_open else None
    try:
        with torch.inference_mode():
            return torch.export.export(module, example, dynamic_shapes=sizes)
    except UsageError:
        raise
    except Exception as error:  # tracing runs every operator of the network, which may raise anything
        raise UsageError(
            f"{bundle.path}: torch.export cannot trace the network ({reason_of(error)}): {WAY_OUT}"
        ) from error


def _tensors(
    program: torch.export.ExportedProgram, nodes: Sequence[Any], tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Tensors of the network with the types and shapes that tracing found, by the names of their nodes."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return tuple(
        Tensor(
            tensor.name,
            str(values[node].dtype).removeprefix("torch."),
            tuple(size if isinstance(size, int) else None for size in values[node].shape),
        )
        for node, tensor in zip(nodes, tensors, strict=True)
    )


def _build(bundle: Bundle, subgraphs: Sequence[Subgraph], device: str, folder: Path) -> None:
    """Builds the object file: the function that runs subgraphs, with a bundle of each inside. Raises UsageError."""
    for number, subgraph in enumerate(subgraphs):
        layers = {name: bundle.layers[name] for name in subgraph.planned.plan.layers}
        files = planned_files(layers, subgraph.planned)
        code = (each for layer in layers.values() for each in (*layer.cubins, *layer.ptx))
        with ZipFile(folder / f"{number}.farm", "w") as packed:
            for name, data in {**{each.path: bundle.cubin(each) for each in code}, **files}.items():
                packed.writestr(ZipInfo(name), data)
    size = sum(each.stat().st_size for each in folder.glob("*.farm"))
    if size > MOST_BYTES:
        raise UsageError(
            f"{bundle.path} has {size / 2**20:,.0f} MiB of code, and a package holds {MOST_BYTES // 2**20:,} MiB: "
            "compile the model for fewer architectures"
        )
    (folder / "bundles.S").write_text(_bundles(folder, len(subgraphs)))
    runtime = Path(farm.runtime.__file__).with_name("c")
    sources = (*sorted(runtime.glob("*.c")), Path(__file__).with_name("subgraph_calls.c"), folder / "bundles.S")
    defined = (f"-DENTRY={_function(device)}", f"-DSUBGRAPHS={len(subgraphs)}", f"-I{runtime}")
    limits = ToolLimits(file_bytes=2 * MOST_BYTES)
    run_tool(["gcc", *_FLAGS, *defined, *sources, "-o", folder / OBJECT], limits=limits)


def _bundles(folder: Path, count: int) -> str:
    """Assembler source: the bundles' files, and a table of their addresses."""
    held = [f'bundle_{number}: .incbin "{folder}/{number}.farm"' for number in range(count)]
    table = ", ".join([*(f"bundle_{number}" for number in range(count)), "bundles_end"])
    head = [".section .rodata", *held, "bundles_end:", '.section .data.rel.ro, "aw"', ".balign 8"]
    names = [".globl subgraph_bundles", ".hidden subgraph_bundles", f"subgraph_bundles: .quad {table}"]
    return "\n".join([*head, *names, '.section .note.GNU-stack, "", @progbits', ""])


def _function(device: str) -> str:
    """The C function that runs a subgraph, as AOTInductor names it after the operator."""
    return f"aoti_torch_{device}_subgraph"


def _compiled(bundle: Bundle, program: torch.export.ExportedProgram, path: Path, device: str) -> Path:
    """Writes the package beside the object file. Raises UsageError."""
    from torch import _inductor

    declaration = (
        f"AOTITorchError {_function(device)}(const AtenTensorHandle*, int64_t, int64_t, const int64_t*, int64_t, ...)"
    )
    settings: dict[str, Any] = {
        f"aot_inductor.{_SHIMS}": {torch.ops.farm.subgraph.default: [declaration]},
        # PyTorch writes -l before this text, in a command that it splits as a shell does. Libraries that Python loads
        # export std::regex of another release; PyTorch's code in the package, which uses it, must find its own.
        f"aot_inductor.{_LIBRARIES}": [f":{OBJECT} {shlex.quote(f'-L{path.parent}')} -lcuda -Wl,-Bsymbolic"],
        "aot_inductor.precompile_headers": False,  # takes longer for a single file
        **_inductor.list_mode_options(_MODE),
        "use_dce": True,  # an unused size would be a call that AOTInductor cannot make
    }
    if hasattr(_inductor.config.cpp, "march"):  # older releases compile for this CPU alone
        settings |= {"cpp.march": "", "cpp.simdlen": 1}
    try:
        _inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
    except Exception as error:  # AOTInductor raises errors of its compilers as they are
        raise UsageError(
            f"{bundle.path}: AOTInductor cannot compile the network ({reason_of(error)}): {WAY_OUT}"
        ) from error
    return path
