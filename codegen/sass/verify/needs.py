"""The least distance between a result of fixed latency and a word that uses it: the larger figure of two sources.

`isa/latencies.py` says what ptxas leaves, `isa/published_latencies.py` what NVIDIA says. They share no number and no
assignment of instructions to classes, so that an error in one does not pass the checker.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from codegen.sass.isa import latencies
from codegen.sass.isa import published_latencies as figures
from codegen.sass.isa.encoding import ALWAYS, DESTINATION, OPCODE, SOURCE_A, SOURCE_B, SOURCE_C, Field
from codegen.sass.isa.opcodes import FORM_SHIFT, PREDICATES, UNIFORM_PREDICATES, UNIFORM_REGISTERS, Form
from codegen.sass.verify.program import Places, Program

_TO_FLOAT: Final = Field(78, 1)
"""HADD2: the result is a float32."""
_ADDEND_IN_REGISTERS: Final = [form for form in Form if not form.swapped]


def needed(code: Program, writer: Places, places: Places, resources: Places, *, writing: bool) -> Places:
    """Least cycles from words `writer` to the words `places` that read, or with `writing` overwrite, a result."""
    from_ptxas = measured(code, writer, places, resources, writing=writing)
    return np.maximum(from_ptxas, published(code, writer, places, resources, writing=writing))


def measured(code: Program, writer: Places, places: Places, resources: Places, *, writing: bool) -> Places:
    """The cycles of `needed` that ptxas leaves."""
    least = code.architecture.latencies
    if writing:
        both = (code.results[writer] == latencies.MATRIX) & (code.results[places] == latencies.MATRIX)
        after = np.where(both, least.matrix_overwrite, least.overwrite[code.results[writer]])
        after = np.where(code.asynchronous[places], np.maximum(after, least.load_overwrite), after)
        # A word that also reads the register is checked as a reader.
        return np.where(code.used.reads.hold(resources, places), 1, after)
    result, slot = result_class(code, writer, resources), slot_class(code, places, resources)
    guard = resources == PREDICATES + code.guard[places]
    of_predicate = np.where(guard, least.guard, least.predicates[result, slot])
    of_register = np.maximum(least.registers[result, slot], code.least_cycles[writer])
    moved = code.quick_uniform[writer]
    of_uniform = np.where(moved, least.moved_uniform, least.uniform[slot])
    cycles = np.where(resources >= PREDICATES, of_predicate, of_register)
    return np.where(resources >= UNIFORM_REGISTERS, of_uniform, cycles)


def result_class(code: Program, writer: Places, resources: Places) -> Places:
    """The place in `latencies.RESULTS` of the result that a word writes to a resource."""
    result: Places = code.results[writer]
    result[_lower_results(code, writer, resources)] = latencies.RESULTS.index("lower")
    return result


def slot_class(code: Program, places: Places, resources: Places) -> Places:
    """The place in `latencies.SLOTS` of the operand that a resource is; of several, the one that is read first."""
    return _with_halves(code, places, resources, latencies.SLOTS, code.slots[places])


def published(code: Program, writer: Places, places: Places, resources: Places, *, writing: bool) -> Places:
    """The cycles of `needed` that NVIDIA publishes."""
    result = _published_result(code, writer, resources)
    if writing:
        guarded = (code.guard[writer] != ALWAYS).astype(np.int64)
        overwritten: Places = code.architecture.published.overwrite[
            guarded, result, _published_result(code, places, resources)
        ]
        return overwritten
    operand = code.used.per_word(figures.operand_index, places)
    operand[_converts(code, places)] = figures.OPERANDS.index("fp16_f32")
    operand = _with_halves(code, places, resources, figures.OPERANDS, operand)
    starts = (PREDICATES, UNIFORM_REGISTERS, UNIFORM_PREDICATES)
    kind = np.searchsorted(starts, resources, "right")
    uniform = code.used.per_word(lambda opcode: opcode.uniform, places) != 0
    guard = np.where(uniform, UNIFORM_PREDICATES, PREDICATES)
    guard = resources == guard + code.guard[places]
    least = code.architecture.published
    return np.where(guard, least.guard[kind], least.read[kind, operand, result])


def reloads(code: Program) -> tuple[Places, Places, Places, Places]:
    """Words that overwrite a register which a word of fixed latency before them reads, and that must come later.

    The reading words, the overwriting words, the resources, and the least cycles between the two.
    """
    writes, reads = code.used.writes, code.used.reads
    chosen = writes.where((code.asynchronous | code.quick_uniform)[writes.word])
    places, resources = chosen.word, chosen.resource
    readers = reads.where(~code.asynchronous[reads.word]).before(resources, places)
    there = np.flatnonzero(readers >= 0)
    readers, places, resources = readers[there], places[there], resources[there]
    of_load = np.where(resources < PREDICATES, max(latencies.RELOAD_CYCLES, figures.RELOAD_CYCLES), 1)
    uniform = code.used.per_word(figures.operand_index, readers) == figures.OPERANDS.index("udp")
    of_move = np.where(uniform, figures.UNIFORM_MOVE_CYCLES, 1)
    return readers, places, resources, np.where(code.asynchronous[places], of_load, of_move)


def _published_result(code: Program, writer: Places, resources: Places) -> Places:
    """The place in `published_latencies.RESULTS` of the result that a word writes to a resource."""
    result = code.used.per_word(figures.result_index, writer)
    result[_converts(code, writer)] = figures.RESULTS.index("fp16_f32")
    result[_lower_results(code, writer, resources)] = figures.RESULTS.index("lower")
    return result


def _converts(code: Program, places: Places) -> Places:
    """Indices of the places whose word computes a float32 with HADD2."""
    packed = np.flatnonzero(code.used.named("HADD2", places=places))
    found: Places = packed[_TO_FLOAT.get(code.words[places[packed]]) == 1]
    return found


def _lower_results(code: Program, writer: Places, resources: Places) -> Places:
    """Indices of the words whose register is the lower half of a wide product."""
    wide = np.flatnonzero(code.used.named("IMAD.WIDE", places=writer))
    found: Places = wide[DESTINATION.get(code.words[writer[wide]]) == resources[wide]]
    return found


def _with_halves(code: Program, places: Places, resources: Places, classes: tuple[str, ...], others: Places) -> Places:
    """The operand class of words that use a register only as half of a 64-bit addend, `others` for all others."""
    wide = np.flatnonzero(code.used.named("IMAD.WIDE", "IMAD.HI", places=places))
    words, registers = code.words[places[wide]], resources[wide]
    form, addend = OPCODE.get(words) >> FORM_SHIFT, SOURCE_C.get(words)
    second = (form == Form.REGISTERS) & (SOURCE_B.get(words) == registers)
    only = np.isin(form, _ADDEND_IN_REGISTERS) & (registers < PREDICATES)
    only &= ~second & (SOURCE_A.get(words) != registers)
    result = others.copy()
    for i, name in enumerate(("lower", "upper")):
        result[wide[only & (addend + i == registers)]] = classes.index(name)
    return result
