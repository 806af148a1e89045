"""A cubin read, and written back with other code: an ELF file with one kernel's words, and what speaks of their places.

What is not understood is kept byte by byte. Code of another length moves what follows it, by a whole number of
`CODE_ALIGNMENT`, so that everything keeps the alignment that ptxas gave it.
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
"""A kernel's code begins at a multiple of so many bytes and is as long as one."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SECTION_SIZE_FIELD = 32
_SECTION_OFFSET_FIELD = 24
_SECTION_INFO_FIELD = 44
_NOBITS = 8
_CODE = ".text."
_WIDE_LENGTH = 0xFFFFFFFF

REGISTER_COUNT: Final = 0x2F
"""Attribute: a symbol, and the registers of a thread."""
_EXITS: Final = 0x1C
_MOST_LISTED: Final = 0x3FFF
"""Addresses of an attribute, whose length is a number of 16 bits."""
_ADDRESSES: Final = {_EXITS: 4, 0x28: 4, 0x31: 4}
"""Attributes that list code addresses: exits, warp-wide instructions; and how far apart they stand."""
_INDIRECT_BRANCHES: Final = 0x34
"""Attribute: the address of a BRX, two other words and how many targets, then these."""
_CLUSTER: Final = 0x3D
"""Attribute: the blocks of a cluster, in three words."""
_WITHOUT_ADDRESSES: Final = {
    *(0x04, 0x05, 0x0A, 0x11, 0x12, 0x17, 0x19, 0x1B, 0x1E, REGISTER_COUNT),
    *(0x35, 0x36, 0x37, _CLUSTER, 0x3E, 0x41, 0x4A, 0x4C, 0x50, 0x55, 0x5F),
}
"""Those of the farm's kernels that say nothing of places in the code."""


@dataclass(frozen=True)
class Section:
    """One section: where it lies in the file, and how much of it."""

    index: int
    name: str
    kind: int
    offset: int
    size: int
    info: int

    @property
    def end(self) -> int:
        """Where the file goes on."""
        return self.offset + (0 if self.kind == _NOBITS else self.size)


@dataclass(frozen=True)
class Attribute:
    """An entry of `.nv.info`, the driver's facts of a kernel; `offset` is that of its data in the file."""

    number: int
    offset: int
    data: bytes


@dataclass(frozen=True, eq=False)
class CubinFile:
    """A cubin with one kernel; `data` is the whole file."""

    data: bytes
    sections: tuple[Section, ...]

    @staticmethod
    def read(data: bytes) -> CubinFile:
        """Raises MachineCodeError if it is no cubin, is cut short, or has more than one kernel."""
        try:
            cubin = CubinFile(data, tuple(_sections(data)))
        except (struct.error, ValueError) as error:
            raise MachineCodeError(f"not a cubin, or a part of one only: {error}") from None
        kernels = [section for section in cubin.sections if section.name.startswith(_CODE)]
        if len(kernels) != 1:
            raise MachineCodeError(f"a cubin of the farm has one kernel, this one {len(kernels)}")
        if any(section.end > len(data) for section in cubin.sections):
            raise MachineCodeError("a part of a cubin only: a section ends beyond the file")
        return cubin

    @cached_property
    def code(self) -> Section:
        """The section of the kernel's instructions."""
        return next(section for section in self.sections if section.name.startswith(_CODE))

    @property
    def kernel(self) -> str:
        return self.code.name.removeprefix(_CODE)

    @cached_property
    def capability(self) -> int:
        """The number of its architecture: 90 for sm_90 and sm_90a."""
        (flags,) = struct.unpack_from("<I", self.data, 48)
        return int(flags) >> 8 & 0xFF

    @property
    def words(self) -> Words:
        """[instructions, 2]: the kernel's, in an array of their own."""
        return words_of(self.data[self.code.offset : self.code.end])

    @cached_property
    def attributes(self) -> tuple[Attribute, ...]:
        """Of the file and of the kernel."""
        names = (".nv.info", f".nv.info.{self.kernel}")
        return tuple(each for section in self.sections if section.name in names for each in self._entries(section))

    @property
    def registers(self) -> int:
        """Of a thread."""
        (count,) = struct.unpack_from("<I", self._register_count.data, 4)
        return int(count)

    @cached_property
    def cluster(self) -> tuple[int, int, int]:
        """Blocks of a cluster on x, y and z; 1 where there are none."""
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
        raise MachineCodeError("the cubin does not say how many registers a thread has")

    @cached_property
    def jump_tables(self) -> NDArray[np.int64]:
        """The code addresses in constant memory that BRX jumps to, in bytes."""
        return np.array([address for _, address in self._table_entries()], dtype=np.int64)

    def with_words(self, words: Words) -> bytes:
        """The same cubin with other instructions in the places of the old: no place moves."""
        if len(words) * WORD_BYTES != self.code.size:
            raise MachineCodeError(f"{len(words)} instructions in the place of {self.code.size // WORD_BYTES}")
        return self.data[: self.code.offset] + text_of(words) + self.data[self.code.end :]

    def with_code(self, words: Words, moved: NDArray[np.int64], registers: int | None = None) -> bytes:
        """The cubin with code of any length.

        `moved` [old instructions + 1] is where each old instruction is now, or what stands in its place, the last
        entry the end of the code; with a first dimension, where its copies are. `registers` are those of a thread, if
        they are others. Branches are the caller's, as they lie in the words; all else that tells a place in the code
        is put right. Raises MachineCodeError where something is not understood.
        """
        size, copies = len(words) * WORD_BYTES, np.atleast_2d(moved)
        if size % CODE_ALIGNMENT or copies.shape[1] != self.code.size // WORD_BYTES + 1:
            raise MachineCodeError(f"code is a multiple of {CODE_ALIGNMENT} bytes long, and every old word has a place")
        if second := [section.name for section in self.sections if section.name.startswith(".nv.capmerc")]:
            raise MachineCodeError(f"the cubin has its code in a second form too, {second[0]}, which would not follow")
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

    def _with_copies(self, copies: NDArray[np.int64]) -> CubinFile:
        """The cubin with the new addresses of all copies in its attributes, which become longer, and the old code.

        By a multiple of CODE_ALIGNMENT, so that nothing else loses its alignment: the last exit is listed repeatedly.
        """
        if len(self.jump_tables):
            raise MachineCodeError("code with jump tables is not copied")
        section = next(each for each in self.sections if each.name == f".nv.info.{self.kernel}")
        lists: dict[int, list[int]] = {}
        for attribute in self._entries(section):
            if attribute.number in _ADDRESSES:
                old = [address for (address,) in struct.iter_unpack("<I", attribute.data)]
                if any(address % WORD_BYTES or address >= self.code.size for address in old):
                    raise MachineCodeError("a place in the code that is none")
                lists[attribute.number] = np.unique(copies[:, np.array(old) // WORD_BYTES] * WORD_BYTES).tolist()
        more = 4 * sum(map(len, lists.values())) - sum(
            len(attribute.data) for attribute in self._entries(section) if attribute.number in _ADDRESSES
        )
        if _EXITS not in lists:
            raise MachineCodeError("the cubin does not say where its exits are")
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
        """Gives a section another size in the headers, which are still where they were, and moves what is behind it.

        The file's header as it was, and where what began at an offset begins now.
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
        """Offsets in the file of all addresses in the code that are not in the code itself."""
        for attribute in self.attributes:
            if step := _ADDRESSES.get(attribute.number):
                yield from range(attribute.offset, attribute.offset + len(attribute.data), step)
            elif attribute.number == _INDIRECT_BRANCHES:
                yield attribute.offset
                yield from range(attribute.offset + 12, attribute.offset + len(attribute.data), 4)
            elif attribute.number not in _WITHOUT_ADDRESSES:
                raise MachineCodeError(f"attribute {attribute.number:#x} is not known: it may hold places in the code")
        yield from (place for place, _ in self._table_entries())

    def _table_entries(self) -> Iterator[tuple[int, int]]:
        """Of the jump tables: the offset in the file, and the code address there."""
        for section in self.sections:
            if section.name == f".nv.constant2.{self.kernel}":
                for place in range(section.offset, section.end, 4):
                    yield place, int.from_bytes(self.data[place : place + 4], "little")

    def _move(self, out: bytearray, place: int, moved: NDArray[np.int64]) -> None:
        (address,) = struct.unpack_from("<I", out, place)
        if address % WORD_BYTES or address >= self.code.size:
            raise MachineCodeError(f"{address:#x} is no place in {self.code.size:#x} bytes of code")
        struct.pack_into("<I", out, place, int(moved[address // WORD_BYTES]) * WORD_BYTES)

    def _resize(self, out: bytearray, size: int, registers: int | None) -> None:
        """Sizes and offsets for `size` bytes of code, still written where the headers are now."""
        code = self.code
        header, behind = self._make_room(out, code, size)
        segments, place = header[5], header[6] + code.index * _SECTION.size
        if registers is not None and code.info >> 24:  # up to sm_89 the registers stand here too
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
        """The length of the code that the debugger's entry of the kernel is for."""
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
            held = size if form == 4 else 2  # in the place of the size
            start = place + (4 if form == 4 else 2)
            yield Attribute(number, start, self.data[start : start + held])
            place = start + -(-held // 4) * 4 if form == 4 else place + 4


def _sections(data: bytes) -> Iterator[Section]:
    header = _HEADER.unpack_from(data)
    if not header[0].startswith(b"\x7fELF\x02\x01") or header[2] != 190:
        raise ValueError("no 64-bit ELF file for an NVIDIA GPU")
    first, size, count, names = header[6], header[11], header[12], header[13]
    if size != _SECTION.size:
        raise ValueError(f"section headers of {size} bytes")
    rows = [_SECTION.unpack_from(data, first + i * size) for i in range(count)]
    text = data[rows[names][4] : rows[names][4] + rows[names][5]]
    for index, (name, kind, _, _, offset, length, _, info, _, _) in enumerate(rows):
        yield Section(index, text[name : text.index(b"\0", name)].decode("ascii"), kind, offset, length, info)
