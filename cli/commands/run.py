"""`farm run`: run the network of a bundle on arrays."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cli.exit_codes import OK
from cli.output.atomic_file import write_output
from cli.output.console import stdout
from farm.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from codegen.frontend.onnx.export.residual_graph import Tensor
    from farm.runtime.plan import Port


def run_bundle(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A folder or .farm file that farm fetch wrote.")],
    inputs: Annotated[
        list[Path],
        typer.Option(
            "--input",
            metavar="X.npy",
            help="An array for each input, in the network's order; may be repeated. Or one .npz with all, by name.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="Y.npy", help="The file to write; .npz for several outputs.")
    ] = Path("output.npy"),
    device: Annotated[int, typer.Option("--device", metavar="N", min=0, help="Index of the GPU on this machine.")] = 0,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="Run in the emulator, slowly; needs a bundle of farm fetch --ptx.")
    ] = False,
) -> int:
    """Run a bundle's network on arrays, images first, and write its outputs.

    Needs the NVIDIA driver, no framework. Arrays have the input's data type; bfloat16 is stored as uint16. Operators
    that the runtime lacks run in onnxruntime (extra `reference`) on the CPU, with copies around each compiled layer.
    """
    from farm.bundle.reader import Bundle
    from farm.runtime.emulated import run_bundle as emulated
    from farm.runtime.hybrid import HybridNetwork
    from farm.runtime.network import Network
    from farm.runtime.plan import arrays_in_order
    from farm.runtime.plan_text import plan_of

    opened = Bundle(bundle)
    given = read_arrays(inputs)
    ports: list[Port | Tensor] = []
    if emulate and not opened.refused:
        plan = plan_of(opened)
        where, made = "the emulator", emulated(opened, arrays_in_order(plan.inputs, given))
        ports.extend(plan.outputs)
    else:
        network: HybridNetwork | Network
        with HybridNetwork(opened, device, emulate=emulate) if opened.refused else Network(opened, device) as network:
            made = network.run(arrays_in_order(network.inputs, given))
            where = network.device_name
            ports.extend(network.outputs)
    if opened.refused:
        where += " and onnxruntime"
    write_arrays(output, ports, made)
    for port, array in zip(ports, made, strict=True):
        shape = ", ".join(map(str, array.shape))
        stdout().print(Text(f"{output}: {port.name} {port.dtype} [{shape}] from {where}"), soft_wrap=True)
    return OK


def read_arrays(paths: Sequence[Path]) -> list[NDArray[Any]] | dict[str, NDArray[Any]]:
    """The arrays of .npy files, or of one .npz file by their names. Raises UsageError."""
    import numpy as np

    arrays = []
    for path in paths:
        try:
            array = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            why = (isinstance(error, OSError) and error.strerror) or "it holds no array of numbers"
            raise UsageError(f"--input {path}: cannot read it: {why}. Write it with numpy.save.") from None
        if not isinstance(array, np.ndarray):
            if len(paths) > 1:
                raise UsageError(f"--input {path} holds several arrays: give it alone, or .npy files")
            return _named_arrays(path)
        arrays.append(array)
    return arrays


def _named_arrays(path: Path) -> dict[str, NDArray[Any]]:
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"--input {path}: cannot read it: {error}. Write it with numpy.savez.") from None


def write_arrays(path: Path, ports: Sequence[Port | Tensor], arrays: Sequence[NDArray[Any]]) -> None:
    """Write one array as .npy, or several by name as .npz. Raises UsageError."""
    import numpy as np

    if len(arrays) > 1 and path.suffix != ".npz":
        raise UsageError(f"--output {path}: the network has {len(arrays)} outputs: name a file that ends in .npz")
    file = io.BytesIO()
    if path.suffix == ".npz":
        named: dict[str, Any] = {port.name: array for port, array in zip(ports, arrays, strict=True)}
        np.savez(file, **named)
    else:
        np.save(file, arrays[0])
    write_output(path, file.getvalue(), f"--output {path}")
