"""A bundle as an AOTInductor package: one .pt2 file with the compiled layers, which runs without Python.

AOTInductor makes C++ of the network around the layers, which calls each layer by a C function. A static library with
these functions, the C runtime and the bundle is linked into the package's code.
"""

from __future__ import annotations

import shlex
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile, ZipInfo

import torch
from torch import nn

import farm.runtime
from codegen.errors import DeviceError
from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.ir.layer_spec import LayerSpec
from codegen.toolchain.tools import DEFAULT_LIMITS, run_tool
from farm.bundle.reader import CONSTANTS, GLUE, PLAN, Bundle
from farm.errors import BundleError, UsageError, printable
from farm.runtime.plan_text import read_plan
from farm.torch.export import quiet, reason_of
from farm.torch.layer import no_gpu_way_out, output_shape
from farm.torch.module import module_of

LIBRARY = "farm_layers"
"""Name of the static library, as a linker takes it."""
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
_OPERATORS.define("bundled_layer(Tensor x, Tensor? residual, Tensor? gate, int number, SymInt[] sizes) -> Tensor")


def _fake(
    x: torch.Tensor, _residual: torch.Tensor | None, _gate: torch.Tensor | None, _number: int, sizes: Sequence[int]
) -> torch.Tensor:
    return x.new_empty(sizes)


torch.library.register_fake("farm::bundled_layer", _fake)


class LayerCall(nn.Module):
    """A call of the layer with this number in its bundle's plan, for torch.export; it does not run in Python."""

    def __init__(self, spec: LayerSpec, number: int) -> None:
        super().__init__()
        self._spec = spec
        self._number = number

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None, gate: torch.Tensor | None = None
    ) -> torch.Tensor:
        sizes = output_shape(self._spec, x.shape)
        made: torch.Tensor = torch.ops.farm.bundled_layer.default(x, residual, gate, self._number, sizes)
        return made


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
    """Write the network of a bundle as a .pt2 package for GPUs like this machine's first; needs g++.

    Inputs must have no open sizes but the batch. Tests give another device, on which a driver is played. Raises
    DeviceError without a GPU, UsageError for a network that PyTorch cannot export and for an older PyTorch, BundleError
    for an invalid bundle, ToolError and ToolchainError if the C compiler fails or is missing.
    """
    from torch import _inductor

    if _MODE not in _inductor.list_mode_options():
        raise UsageError(
            f"PyTorch {torch.__version__} makes no packages with PyTorch's own bits: install 2.10 or later"
        )
    arch = _arch_of_gpu(bundle) if device == "cuda" else bundle.archs[-1]
    fresh = path.absolute().with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    with TemporaryDirectory(prefix="farm-") as folder, quiet("torch._inductor"):
        program, batch = _exported(bundle, device)
        _build_library(bundle, arch, device, Path(folder))
        made = _compiled(bundle, program, Path(folder, path.stem + SUFFIX), device)
        try:
            fresh.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made, fresh)
            fresh.replace(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}): name another file") from None
        finally:
            fresh.unlink(missing_ok=True)
    network, signature = bundle.network, program.graph_signature
    return Package(
        path,
        batch,
        _tensors(program, signature.user_inputs, network.inputs),
        _tensors(program, signature.user_outputs, network.outputs),
    )


def _arch_of_gpu(bundle: Bundle) -> str:
    """Raises DeviceError without a GPU, and UsageError if the bundle has no code for it."""
    if not torch.cuda.is_available():
        raise DeviceError(
            "AOTInductor compiles for this machine's GPU, and PyTorch finds none: "
            f"{no_gpu_way_out()}. The C runtime runs bundles without an export"
        )
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}"
    if not all(layer.cubins_for(arch) for layer in bundle.layers.values()):
        raise UsageError(
            f"{bundle.path} has code for {', '.join(bundle.archs)} only, not for {torch.cuda.get_device_name()} "
            f"({arch}): compile the model with --arch {arch}"
        )
    return arch


def _exported(bundle: Bundle, device: str) -> tuple[torch.export.ExportedProgram, int | None]:
    """The network with its layers as calls, and the only batch size that it takes, if there is one."""
    network = bundle.network
    numbers = {layer.name: i for i, layer in enumerate(read_plan(bundle.plan).layers)}
    if missing := bundle.layers.keys() - numbers.keys():
        raise BundleError(f"{bundle.path}: {PLAN} lacks the layer {printable(min(missing))}: fetch the bundle again")
    if not all(isinstance(size, int) for each in network.inputs for size in each.shape[1:]):
        raise UsageError(f"{bundle.path} has open sizes besides the batch: compile the model with --input-shape")
    calls = {name: LayerCall(layer.spec, numbers[name]) for name, layer in bundle.layers.items()}
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


def _build_library(bundle: Bundle, arch: str, device: str, folder: Path) -> None:
    """Builds the static library: the function that computes layers, with the code for one architecture inside."""
    archive = folder / "bundle.farm"
    files = {PLAN: bundle.plan, CONSTANTS: bundle.constants, GLUE: bundle.glue}
    files |= {each.path: bundle.cubin(each) for layer in bundle.layers.values() for each in layer.cubins_for(arch)}
    with ZipFile(archive, "w") as packed:
        for name, data in files.items():
            packed.writestr(ZipInfo(name), data)
    runtime = Path(farm.runtime.__file__).with_name("c")
    sources = (*sorted(runtime.glob("*.c")), Path(__file__).with_name("layer_calls.c"))
    defined = (f"-DENTRY={_function(device)}", f'-DBUNDLE="{archive}"', f"-I{runtime}")
    run_tool(["gcc", *_FLAGS, *defined, *sources, "-o", folder / "layers.o"], limits=DEFAULT_LIMITS)
    run_tool(["ar", "rcs", folder / f"lib{LIBRARY}.a", folder / "layers.o"], limits=DEFAULT_LIMITS)


def _function(device: str) -> str:
    """The C function that computes a layer, as AOTInductor names it after the operator."""
    return f"aoti_torch_{device}_bundled_layer"


def _compiled(bundle: Bundle, program: torch.export.ExportedProgram, path: Path, device: str) -> Path:
    """Writes the package beside the static library. Raises UsageError."""
    from torch import _inductor

    declaration = (
        f"AOTITorchError {_function(device)}(AtenTensorHandle, AtenTensorHandle*, AtenTensorHandle*, int64_t, "
        "const int64_t*, int64_t, AtenTensorHandle*)"
    )
    settings: dict[str, Any] = {
        f"aot_inductor.{_SHIMS}": {torch.ops.farm.bundled_layer.default: [declaration]},
        # PyTorch writes -l before this text, in a command that it splits as a shell does.
        f"aot_inductor.{_LIBRARIES}": [f"{LIBRARY} {shlex.quote(f'-L{path.parent}')} -lcuda"],
        "aot_inductor.precompile_headers": False,  # takes longer for a single file
        **_inductor.list_mode_options(_MODE),
        "use_dce": True,  # an unused size would be a call that AOTInductor cannot make
    }
    try:
        _inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
    except Exception as error:  # AOTInductor raises errors of its compilers as they are
        raise UsageError(
            f"{bundle.path}: AOTInductor cannot compile the network ({reason_of(error)}): {WAY_OUT}"
        ) from error
    return path
