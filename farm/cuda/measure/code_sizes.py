"""Code sizes: number of instructions in a cubin or in PTX."""

from __future__ import annotations

import re
import struct

INSTRUCTION_BYTES = 16
_INSTRUCTION = re.compile(rb"^[ \t]*(?:@!?%\w+[ \t]+)?[{a-z][^/:\n]*;", re.MULTILINE)


def machine_instructions(cubin: bytes) -> int:
    """Number of instructions in the .text sections of a 64-bit ELF file, including the padding of ptxas.

    Raises ValueError for any other file.
    """
    if not cubin.startswith(b"\x7fELF\x02") or len(cubin) < 64:
        raise ValueError("not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", cubin, 40)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry_bytes) for i in range(count)]
    names_at = sections[names_index][4]
    total = 0
    for name, _, _, _, _, size in sections:
        if cubin[names_at + name :].startswith(b".text."):
            total += size
    return total // INSTRUCTION_BYTES


def ptx_instructions(ptx: bytes) -> int:
    """Number of PTX lines with an instruction; a block in braces on one line counts once."""
    return len(_INSTRUCTION.findall(ptx))
