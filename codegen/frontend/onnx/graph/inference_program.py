"""Program that infers the shapes of an ONNX model by onnx's native code alone, which loads in milliseconds."""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

NAME = "onnx_cpp2py_export"


def main(library: str, model: str, result: str, largest_bytes: str) -> None:
    """Writes the model with inferred shapes; `library` is onnx's extension module. Exits with onnx's message."""
    loader = ExtensionFileLoader(NAME, library)
    native = module_from_spec(ModuleSpec(NAME, loader, origin=library))
    loader.exec_module(native)
    try:
        inferred = native.shape_inference.infer_shapes(Path(model).read_bytes(), False, False, True)
    except (native.shape_inference.InferenceError, ValueError) as error:  # ValueError: an unknown type, a bad name
        sys.exit(str(error))
    except MemoryError:
        sys.exit("out of memory")
    if len(inferred) > int(largest_bytes):  # the reader would need many times as much
        sys.exit("out of memory")
    Path(result).write_bytes(inferred)


if __name__ == "__main__":
    main(*sys.argv[1:])
