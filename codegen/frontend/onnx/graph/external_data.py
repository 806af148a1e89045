"""External data: weights that an ONNX model keeps in other files, which must be inside the model's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from codegen.contained_file import open_contained
from codegen.errors import CheckpointError, ContainedFileError


@dataclass(frozen=True)
class ExternalData:
    """A checked range of bytes in an external data file."""

    folder: Path
    """The model's folder, links resolved."""
    name: str
    """Path relative to the folder, links resolved."""
    offset: int
    byte_count: int

    @property
    def path(self) -> Path:
        return self.folder / self.name

    def read(self) -> bytes:
        """The bytes of the tensor. Raises CheckpointError if the file can no longer be read."""
        try:
            with open_contained(self.folder, self.name) as file:
                file.seek(self.offset)
                return file.read(self.byte_count)
        except (OSError, ContainedFileError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or error
            raise CheckpointError(
                f"external data '{self.path.name}' cannot be read ({reason}): check its permissions"
            ) from error


def find_external_data(folder: Path, entries: Mapping[str, str], byte_count: int | None) -> ExternalData:
    """The file range of a tensor, from its `external_data` entries location, offset and length.

    `byte_count` replaces a missing length; without both the range reaches to the end of the file.
    Raises CheckpointError if the file is missing, too short, or outside `folder` after following links.
    """
    location = entries.get("location", "")
    where = f"external data '{location}'"
    outside = CheckpointError(
        f"{where} lies outside the model's folder, which a model may not read: "
        "copy the file itself beside the model and name it relative to the model"
    )
    if Path(location).is_absolute() or ".." in Path(location).parts:
        raise outside
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries["length"]) if "length" in entries else byte_count
        root = folder.resolve()
        target = (root / location).resolve(strict=True)
        if not target.is_relative_to(root):
            raise outside
        name = str(target.relative_to(root))
        with open_contained(root, name) as file:
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{where} is missing: put the file beside the model, where the export wrote it"
        ) from error
    except ContainedFileError as error:
        raise CheckpointError(f"{where} cannot be used: {error}. Export the model again") from error
    except (OSError, RuntimeError, ValueError) as error:  # circular links; not a number or path
        raise CheckpointError(f"{where} cannot be used ({error}): export the model again") from error
    if length is None:
        length = size - offset
    if offset < 0 or length < 0 or offset + length > size:
        raise CheckpointError(
            f"{where} has {size} bytes, but the model reads {length} from byte {offset}: "
            "the file was cut short or belongs to another model; copy or export both again"
        )
    return ExternalData(root, name, offset, length)
