"""Weight table of a kernel in PTX: an array of 64-bit numbers beside the code.

    .global .align 256 .b64 farm_table[2] = {
    0x3F8000003F800000,
    0x0000000000000001
    };

ptxas reads such numbers slowly and with much memory. It is given a single non-zero number instead, lays out a data
section of the full size, and the numbers are written there afterwards. The cubin is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.errors import PtxError
from codegen.sass.cubin import CubinFile

NAME = "farm_table"
_BEGIN = f".global .align 256 .b64 {NAME}["
_LINE = b"0x0000000000000000,\n"
_DIGITS = slice(2, 18)
_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), dtype=np.uint16)
"""Each byte as two hexadecimal digits."""
_SECTION = ".nv.global.init"


def declared(table: NDArray[np.uint64]) -> bytes:
    """The declaration of a table in PTX."""
    lines = np.empty((len(table), len(_LINE)), dtype=np.uint8)
    lines[:] = np.frombuffer(_LINE, dtype=np.uint8)
    lines[:, _DIGITS] = _HEX[table.astype(">u8").view(np.uint8)].view(np.uint8).reshape(len(table), -1)
    lines[-1, -2] = ord(" ")
    return b"".join([f"{_BEGIN}{len(table)}] = {{\n".encode(), lines.tobytes(), b"};\n"])


def numbers(lines: bytes) -> NDArray[np.uint64]:
    """Reads the numbers between the braces into a read-only array. Raises PtxError for lines of another form."""
    text = np.frombuffer(lines, dtype=np.uint8)
    if len(text) % len(_LINE):
        raise PtxError("the numbers of a table must have 16 hexadecimal digits, one a line")
    digits = text.reshape(-1, len(_LINE))[:, _DIGITS]
    values = np.frombuffer(bytes.fromhex(digits.tobytes().decode("ascii")), dtype=">u8").astype(np.uint64)
    values.setflags(write=False)
    return values


@dataclass(frozen=True, eq=False)
class Tabled:
    """PTX without the numbers of its table, and the numbers."""

    ptx: bytes
    table: NDArray[np.uint64]

    @staticmethod
    def of(ptx: bytes) -> Tabled | None:
        """Separates the numbers from the PTX. None for PTX without a table."""
        if (start := ptx.find(_BEGIN.encode())) < 0:
            return None
        first = ptx.index(b"{\n", start) + 2
        end = ptx.index(b"};", first)
        return Tabled(b"".join([ptx[:first], b"1\n", ptx[end:]]), numbers(ptx[first:end]))

    def filled(self, cubin: bytes) -> bytes:
        """Writes the numbers into the cubin that ptxas made of `ptx`. Raises PtxError if it has no section for them."""
        data = self.table.tobytes()
        found = [each for each in CubinFile.read(cubin).sections if each.name == _SECTION]
        if [each.size for each in found] != [len(data)]:
            raise PtxError(f"ptxas gave the table of {len(data):,} bytes no section of its own")
        place = found[0].offset
        return b"".join([cubin[:place], data, cubin[place + len(data) :]])
