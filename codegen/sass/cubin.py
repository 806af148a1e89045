"""The cubin file: an ELF file with one kernel's code, and the code addresses that have to follow when it changes.

Everything that is not understood is kept byte by byte. Code of another length moves what follows it by a multiple of
`CODE_ALIGNMENT`, so that every section keeps the alignment that ptxas gave it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.isa.encoding import WORD_BYTES, Words, text_of, words_of

CODE_ALIGNMENT: Final = 128
"""A kernel's code begins at a multiple of this many bytes, and its length is one too."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SECTION_SIZE_FIELD = 32
_SECTION_OFFSET_FIELD = 24
_SECTION_INFO_FIELD = 44
_NOBITS = 8
_CODE = ".text."
_SECOND_FORM = (".nv.capmerc.", ".nv.merc.")
_HEADER_ALIGNMENT = 8
_WIDE_LENGTH = 0xFFFFFFFF

REGISTER_COUNT: Final = 0x2F
"""Attribute: a symbol, then the registers per thread."""
_EXITS: Final = 0x1C
_MOST_LISTED: Final = 0x3FFF
"""Most addresses in one attribute: its length in bytes has 16 bits."""
_ADDRESSES: Final = {_EXITS: 4, 0x28: 4, 0x31: 4}
"""Attributes that list code addresses (exits, warp-wide instructions), and the bytes from one address to the next."""
_INDIRECT_BRANCHES: Final = 0x34
"""Attribute: the address of a BRX, two other words, the number of its targets, then the targets."""
_CLUSTER: Final = 0x3D
"""Attribute: the blocks of a cluster on x, y and z."""
_WITHOUT_ADDRESSES: Final = {
    *(0x04, 0x05, 0x0A, 0x11, 0x12, 0x17, 0x19, 0x1B, 0x1E, REGISTER_COUNT),
    *(0x35, 0x36, 0x37, _CLUSTER, 0x3E, 0x41, 0x4A, 0x4C, 0x50, 0x55, 0x5F),
}
"""Attributes of the farm's kernels that hold no code address."""


@dataclass(frozen=True)
class Section:
    """A section of the ELF file."""

    index: int
    name: str
    kind: int
    offset: int
    size: int
    info: int

    @property
    def end(self) -> int:
        """Offset of the first byte after it."""
        return self.offset + (0 if self.kind == _NOBITS else self.size)


@dataclass(frozen=True)
class Attribute:
    """An entry of `.nv.info`, which tells the driver about the file or its kernel."""

    number: int
    offset: int
    """Offset of its data in the file."""
    data: bytes


@dataclass(frozen=True, eq=False)
class CubinFile:
    """A cubin with one kernel; `data` is the whole file."""

    data: bytes
    sections: tuple[Section, ...]

    @staticmethod
    def read(data: bytes) -> CubinFile:
        """Reads a file. Raises MachineCodeError if it is not a cubin, is truncated, or does not hold one kernel."""
        try:
            cubin = CubinFile(data, tuple(_sections(data)))
        except (struct.error, ValueError) as error:
            raise MachineCodeError(f"not a cubin, or truncated: {error}") from None
        kernels = [section for section in cubin.sections if section.name.startswith(_CODE)]
        if len(kernels) != 1:
            raise MachineCodeError(f"a cubin with {len(kernels)} kernels: expected one")
        if any(section.end > len(data) for section in cubin.sections):
            raise MachineCodeError("truncated cubin: a section ends beyond the file")
        return cubin

    @cached_property
    def code(self) -> Section:
        """The section with the kernel's instructions."""
        return next(section for section in self.sections if section.name.startswith(_CODE))

    @property
    def kernel(self) -> str:
        return self.code.name.removeprefix(_CODE)

    @cached_property
    def capability(self) -> int:
        """The number of the architecture: 90 for sm_90 and sm_90a."""
        (flags,) = struct.unpack_from("<I", self.data, 48)
        return int(flags) >> 8 & 0xFF

    @property
    def words(self) -> Words:
        """The kernel's instructions [instructions, 2], a copy."""
        return words_of(self.data[self.code.offset : self.code.end])

    @cached_property
    def attributes(self) -> tuple[Attribute, ...]:
        """The attributes of the file and of the kernel."""
        names = (".nv.info", f".nv.info.{self.kernel}")
        return tuple(each for section in self.sections if section.name in names for each in self._entries(section))

    @property
    def registers(self) -> int:
        """Registers per thread."""
        (count,) = struct.unpack_from("<I", self._register_count.data, 4)
        return int(count)

    @cached_property
    def cluster(self) -> tuple[int, int, int]:
        """Blocks of a cluster on x, y and z; 1, 1, 1 for a kernel without clusters."""
        for attribute in self.attributes:
            if attribute.number == _CLUSTER:
                x, y, z = struct.unpack("<III", attribute.data)
                return x, y, z
        return 1, 1, 1

    @cached_property
    def _register_count(self) -> Attribute:
        for attribute in self.attributes:
            if attribute.number == REGISTER_COUNT:
                return attribute
        raise MachineCodeError("the cubin has no register count")

    @cached_property
    def jump_tables(self) -> NDArray[np.int64]:
        """Code addresses, in bytes, of the jump tables that BRX uses, from constant memory."""
        return np.array([address for _, address in self._table_entries()], dtype=np.int64)

    @cached_property
    def literals(self) -> bytes:
        """Constant bank 2: jump tables, or constants that fit no instruction."""
        found = (each for each in self.sections if each.name == f".nv.constant2.{self.kernel}")
        return next((self.data[each.offset : each.end] for each in found), b"")

    def with_words(self, words: Words) -> bytes:
        """The file with other instructions of the same number. Raises MachineCodeError for another number."""
        if len(words) * WORD_BYTES != self.code.size:
            raise MachineCodeError(f"{len(words)} instructions in the place of {self.code.size // WORD_BYTES}")
        return self.data[: self.code.offset] + text_of(words) + self.data[self.code.end :]

    def with_code(self, words: Words, moved: NDArray[np.int64], registers: int | None = None) -> bytes:
        """The file with code of another length, and all code addresses outside the code moved with it.

        `moved` [old instructions + 1] is the new place of each old instruction, the last entry the end of the code;
        [copies, old instructions + 1] if the code holds several copies. `registers` is the new count per thread, if it
        changes. The caller sets branch distances, as they are part of the words. A second form of the code is left
        out, as it would not follow. Raises MachineCodeError for an attribute that is not understood.
        """
        size, copies = len(words) * WORD_BYTES, np.atleast_2d(moved)
        if size % CODE_ALIGNMENT or copies.shape[1] != self.code.size // WORD_BYTES + 1:
            raise MachineCodeError(f"code needs a multiple of {CODE_ALIGNMENT} bytes and a place for every old word")
        if any(section.name.startswith(_SECOND_FORM) for section in self.sections):
            return self.without_second_form.with_code(words, moved, registers)
        places = list(self._address_places())
        cubin = self if len(copies) == 1 else self._with_copies(copies)
        out, code = bytearray(cubin.data), cubin.code
        if cubin is self:
            for place in places:
                self._move(out, place, copies[0])
        if registers is not None:
            struct.pack_into("<I", out, cubin._register_count.offset + 4, registers)
        cubin._resize(out, size, registers)
        return bytes(out[: code.offset]) + text_of(words) + bytes(out[code.end :])

    @cached_property
    def without_second_form(self) -> CubinFile:
        """The cubin without the sections from which the driver makes code for other architectures.

        ptxas writes them last, and they have a symbol table of their own, so nothing else names them. Raises
        MachineCodeError for another order.
        """
        header = _HEADER.unpack_from(self.data)
        kept = [section for section in self.sections if not section.name.startswith(_SECOND_FORM)]
        segments, sections = header[5], header[6]
        end = -(-max(section.end for section in kept) // _HEADER_ALIGNMENT) * _HEADER_ALIGNMENT
        left_out = self.sections[len(kept) :]
        if kept != list(self.sections[: len(kept)]) or any(not end <= each.offset <= sections for each in left_out):
            raise MachineCodeError("the second form of the code is not at the end of the cubin")
        if segments != sections + _SECTION.size * len(self.sections):
            raise MachineCodeError("the cubin's segments are not described behind its sections")
        table, rest = _SECTION.size * len(kept), self.data[segments:]
        out = bytearray(self.data[:end] + self.data[sections : sections + table] + rest)
        _HEADER.pack_into(out, 0, *header[:5], end + table, end, *header[7:12], len(kept), header[13])
        for i in range(header[10]):
            segment = list(_SEGMENT.unpack_from(out, end + table + i * _SEGMENT.size))
            if segment[2] >= segments:
                segment[2] += end + table - segments
            _SEGMENT.pack_into(out, end + table + i * _SEGMENT.size, *segment)
        return CubinFile.read(bytes(out))

    def _with_copies(self, copies: NDArray[np.int64]) -> CubinFile:
        """The cubin with its old code, and the addresses of all copies in its attributes.

        The attributes grow by a multiple of CODE_ALIGNMENT, for which the last exit is listed repeatedly.
        """
        if len(self.jump_tables):
            raise MachineCodeError("code with jump tables cannot be copied")
        section = next(each for each in self.sections if each.name == f".nv.info.{self.kernel}")
        lists: dict[int, list[int]] = {}
        for attribute in self._entries(section):
            if attribute.number in _ADDRESSES:
                old = [address for (address,) in struct.iter_unpack("<I", attribute.data)]
                if any(address % WORD_BYTES or address >= self.code.size for address in old):
                    raise MachineCodeError("code address outside the kernel")
                lists[attribute.number] = np.unique(copies[:, np.array(old) // WORD_BYTES] * WORD_BYTES).tolist()
        more = 4 * sum(map(len, lists.values())) - sum(
            len(attribute.data) for attribute in self._entries(section) if attribute.number in _ADDRESSES
        )
        if _EXITS not in lists:
            raise MachineCodeError("the cubin does not list its exits")
        padding = -more % CODE_ALIGNMENT
        lists[_EXITS] += lists[_EXITS][-1:] * (padding // 4)
        if max(map(len, lists.values())) > _MOST_LISTED:
            raise MachineCodeError(f"more than {_MOST_LISTED} exits")
        text = bytearray()
        at = section.offset
        for attribute in self._entries(section):
            long_form = attribute.offset == at + 4
            end = attribute.offset + -(-len(attribute.data) // 4) * 4 if long_form else at + 4
            if attribute.number in lists:
                numbers = lists[attribute.number]
                text += self.data[at : at + 2] + struct.pack(f"<H{len(numbers)}I", 4 * len(numbers), *numbers)
            else:
                text += self.data[at:end]
            at = end
        return self._with_section(section, bytes(text))

    def _with_section(self, section: Section, text: bytes) -> CubinFile:
        """The cubin with other bytes in a section before the code, longer by a multiple of CODE_ALIGNMENT."""
        out = bytearray(self.data)
        header, behind = self._make_room(out, section, len(text))
        segments = header[5]
        for i in range(header[10]):
            segment = list(_SEGMENT.unpack_from(out, segments + i * _SEGMENT.size))
            segment[2] = behind(segment[2])
            _SEGMENT.pack_into(out, segments + i * _SEGMENT.size, *segment)
        return CubinFile.read(bytes(out[: section.offset]) + text + bytes(out[section.end :]))

    def _make_room(self, out: bytearray, section: Section, size: int) -> tuple[Sequence[int], Callable[[int], int]]:
        """Writes a section's new size, and the new offsets of what is behind it, into the headers at their old places.

        Returns the file's old header, and a function from old offsets to new ones.
        """
        header = _HEADER.unpack_from(out)

        def behind(offset: int) -> int:
            return offset + size - section.size if offset >= section.end else offset

        segments, sections = header[5], header[6]
        _HEADER.pack_into(out, 0, *header[:5], behind(segments), behind(sections), *header[7:])
        for each in self.sections:
            place = sections + each.index * _SECTION.size
            struct.pack_into("<Q", out, place + _SECTION_OFFSET_FIELD, behind(each.offset))
        struct.pack_into("<Q", out, sections + section.index * _SECTION.size + _SECTION_SIZE_FIELD, size)
        return header, behind

    def _address_places(self) -> Iterator[int]:
        """Offsets in the file of all code addresses outside the code."""
        for attribute in self.attributes:
            if step := _ADDRESSES.get(attribute.number):
                yield from range(attribute.offset, attribute.offset + len(attribute.data), step)
            elif attribute.number == _INDIRECT_BRANCHES:
                yield attribute.offset
                yield from range(attribute.offset + 12, attribute.offset + len(attribute.data), 4)
            elif attribute.number not in _WITHOUT_ADDRESSES:
                raise MachineCodeError(f"unknown attribute {attribute.number:#x}, which may hold code addresses")
        yield from (place for place, _ in self._table_entries())

    def _table_entries(self) -> Iterator[tuple[int, int]]:
        """Entries of the jump tables: offset in the file, and code address.

        Constant bank 2 of a kernel without BRX has constants of 64 bits. Raises MachineCodeError for one with both.
        """
        targets = {
            target
            for attribute in self.attributes
            if attribute.number == _INDIRECT_BRANCHES
            for (target,) in struct.iter_unpack("<I", attribute.data[12:])
        }
        for section in self.sections if targets else ():
            if section.name == f".nv.constant2.{self.kernel}":
                for place in range(section.offset, section.end, 4):
                    address = int.from_bytes(self.data[place : place + 4], "little")
                    if address not in targets:
                        raise MachineCodeError(f"constant bank 2 holds {address:#x}, which no BRX goes to")
                    yield place, address

    def _move(self, out: bytearray, place: int, moved: NDArray[np.int64]) -> None:
        (address,) = struct.unpack_from("<I", out, place)
        if address % WORD_BYTES or address >= self.code.size:
            raise MachineCodeError(f"code address {address:#x} outside the kernel of {self.code.size:#x} bytes")
        struct.pack_into("<I", out, place, int(moved[address // WORD_BYTES]) * WORD_BYTES)

    def _resize(self, out: bytearray, size: int, registers: int | None) -> None:
        """Writes sizes and offsets for `size` bytes of code into the headers at their old places."""
        code = self.code
        header, behind = self._make_room(out, code, size)
        segments, place = header[5], header[6] + code.index * _SECTION.size
        if registers is not None and code.info >> 24:  # up to sm_89 the register count is here too
            struct.pack_into("<I", out, place + _SECTION_INFO_FIELD, code.info & 0xFFFFFF | registers << 24)
        for i in range(header[10]):
            segment = list(_SEGMENT.unpack_from(out, segments + i * _SEGMENT.size))
            start, length = segment[2], segment[5]
            segment[2] = behind(start)
            if start <= code.offset and code.end <= start + length:
                segment[5], segment[6] = length + size - code.size, segment[6] + size - code.size
            _SEGMENT.pack_into(out, segments + i * _SEGMENT.size, *segment)
        for section in self.sections:
            if section.name == ".symtab":
                self._resize_symbol(out, section, size)
            elif section.name == ".debug_frame":
                self._resize_frame(out, section, size)

    def _resize_symbol(self, out: bytearray, table: Section, size: int) -> None:
        for place in range(table.offset, table.end, _SYMBOL.size):
            symbol = list(_SYMBOL.unpack_from(out, place))
            if symbol[3] == self.code.index and symbol[5] == self.code.size:
                symbol[5] = size
                _SYMBOL.pack_into(out, place, *symbol)

    def _resize_frame(self, out: bytearray, frame: Section, size: int) -> None:
        """Writes the length of the code into the kernel's entry for debuggers."""
        place = frame.offset
        while place < frame.end:
            marker, length, owner = struct.unpack_from("<IQQ", out, place)
            if marker != _WIDE_LENGTH:
                raise MachineCodeError(".debug_frame is not in the 64-bit form that ptxas writes")
            if owner != (1 << 64) - 1:
                struct.pack_into("<Q", out, place + 28, size)
            place += 12 + length

    def _entries(self, section: Section) -> Iterator[Attribute]:
        place = section.offset
        while place < section.end:
            form, number, size = struct.unpack_from("<BBH", self.data, place)
            held = size if form == 4 else 2  # the data is where the size would be
            start = place + (4 if form == 4 else 2)
            yield Attribute(number, start, self.data[start : start + held])
            place = start + -(-held // 4) * 4 if form == 4 else place + 4


def _sections(data: bytes) -> Iterator[Section]:
    header = _HEADER.unpack_from(data)
    if not header[0].startswith(b"\x7fELF\x02\x01") or header[2] != 190:
        raise ValueError("expected a 64-bit ELF file for an NVIDIA GPU")
    first, size, count, names = header[6], header[11], header[12], header[13]
    if size != _SECTION.size:
        raise ValueError(f"section headers of {size} bytes")
    rows = [_SECTION.unpack_from(data, first + i * size) for i in range(count)]
    text = data[rows[names][4] : rows[names][4] + rows[names][5]]
    for index, (name, kind, _, _, offset, length, _, info, _, _) in enumerate(rows):
        yield Section(index, text[name : text.index(b"\0", name)].decode("ascii"), kind, offset, length, info)
