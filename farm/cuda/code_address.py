"""The device address of a kernel's code, which no CUDA function returns.

A variable is added to the cubin, with a relocation that makes the driver write the kernel's address into it.
"""

from __future__ import annotations

import struct

VARIABLE = "code_address"
"""Name of the added variable of 8 bytes."""
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT_TABLE, _SECTION_TABLE, _SEGMENT_COUNT, _SECTION_COUNT, _NAMES = 5, 6, 10, 12, 13
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NAME, _OFFSET, _SIZE, _LINK, _INFO = 0, 4, 5, 6, 7
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_CUBIN = 190
_PROGBITS, _RELA = 1, 4
_WRITABLE, _ALLOCATED, _HAS_INFO = 1, 2, 0x40
_LOAD, _READ_AND_WRITE = 1, 6
_FUNCTION, _GLOBAL_OBJECT = 2, 0x11
_ADDRESS = 2
"""R_CUDA_64: relocation with the 8-byte address of a symbol."""
_DATA, _RELOCATIONS = ".nv.global.init", ".rela.nv.global.init"


def with_address(cubin: bytes) -> tuple[bytes, int] | None:
    """A cubin with the variable added, and the size of its kernel's code.

    None for anything but a cubin with one kernel and no initialized variables. The existing bytes keep their place; the
    variable, its relocation and the changed tables are appended.
    """
    try:
        return _with_address(cubin)
    except (struct.error, IndexError, ValueError):
        return None


def _with_address(data: bytes) -> tuple[bytes, int] | None:
    header = list(_HEADER.unpack_from(data))
    if not header[0].startswith(b"\x7fELF\x02\x01") or header[2] != _CUBIN:
        return None
    sections = [
        list(_SECTION.unpack_from(data, header[_SECTION_TABLE] + i * _SECTION.size))
        for i in range(header[_SECTION_COUNT])
    ]

    def content(index: int) -> bytes:
        return data[sections[index][_OFFSET] : sections[index][_OFFSET] + sections[index][_SIZE]]

    texts = content(header[_NAMES])
    names = [texts[each[_NAME] : texts.index(b"\0", each[_NAME])].decode() for each in sections]
    code = [index for index, name in enumerate(names) if name.startswith(".text.")]
    if len(code) != 1 or _DATA in names:
        return None
    table = names.index(".symtab")
    strings = sections[table][_LINK]
    symbols = list(_SYMBOL.iter_unpack(content(table)))
    [kernel] = [i for i, each in enumerate(symbols) if each[3] == code[0] and each[1] & 15 == _FUNCTION]

    out = bytearray(data)

    def put(content: bytes, alignment: int = 8) -> int:
        out.extend(bytes(-len(out) % alignment))
        out.extend(content)
        return len(out) - len(content)

    symbol = _SYMBOL.pack(len(content(strings)), _GLOBAL_OBJECT, 0, len(sections), 0, 8)
    longer = {
        header[_NAMES]: texts + f"{_DATA}\0{_RELOCATIONS}\0".encode(),
        strings: content(strings) + f"{VARIABLE}\0".encode(),
        table: content(table) + symbol,
    }
    for index, text in longer.items():
        sections[index][_OFFSET], sections[index][_SIZE] = put(text), len(text)
    sections[table][_INFO] = len(symbols) + 1
    variable = put(bytes(8))
    relocation = put(_RELOCATION.pack(0, kernel << 32 | _ADDRESS, 0))
    place = len(sections)
    sections.append([len(texts), _PROGBITS, _WRITABLE | _ALLOCATED, 0, variable, 8, 0, 0, 8, 0])
    name = len(texts) + len(_DATA) + 1
    sections.append([name, _RELA, _HAS_INFO, 0, relocation, _RELOCATION.size, table, place, 8, _RELOCATION.size])
    header[_SECTION_TABLE], header[_SECTION_COUNT] = (
        put(b"".join(_SECTION.pack(*each) for each in sections)),
        len(sections),
    )
    _add_segment(header, data, variable, out)
    _HEADER.pack_into(out, 0, *header)
    return bytes(out), sections[code[0]][_SIZE]


def _add_segment(header: list[int], data: bytes, variable: int, out: bytearray) -> None:
    """Append a segment for the variable, and move the segment table, which two segments contain."""
    old, count = header[_SEGMENT_TABLE], header[_SEGMENT_COUNT]
    segments = [list(_SEGMENT.unpack_from(data, old + i * _SEGMENT.size)) for i in range(count)]
    segments.append([_LOAD, _READ_AND_WRITE, variable, 0, 0, 8, 8, 8])
    out.extend(bytes(-len(out) % 8))
    for each in segments:
        if each[2] == old:
            each[2], each[5], each[6] = len(out), len(segments) * _SEGMENT.size, len(segments) * _SEGMENT.size
    header[_SEGMENT_TABLE], header[_SEGMENT_COUNT] = len(out), len(segments)
    out.extend(b"".join(_SEGMENT.pack(*each) for each in segments))
