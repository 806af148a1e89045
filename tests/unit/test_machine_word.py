"""The 128-bit machine word: its fields hold what is put into them, and nothing else changes."""

import numpy as np
import pytest

from codegen.machine import word
from codegen.machine.word import Field

FIELDS = {name: value for name, value in vars(word).items() if isinstance(value, Field)}


def drawn_words(count: int = 64) -> word.Words:
    return np.random.default_rng(1).integers(0, 2**64, (count, 2), dtype=np.uint64)


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_a_field_gives_back_what_was_put_and_leaves_the_other_bits(field: Field) -> None:
    words = drawn_words()
    before = words.copy()
    values = np.random.default_rng(2).integers(0, 2**field.bits, len(words))
    field.put(words, values)
    assert np.array_equal(field.get(words), values)
    field.put(words, field.get(before))
    assert np.array_equal(words, before)


def test_a_value_that_does_not_fit_its_field_is_refused() -> None:
    with pytest.raises(ValueError, match="16 does not fit a field of 4 bits"):
        word.STALL.put(drawn_words(), 16)


@pytest.mark.parametrize("capability", [75, 80, 90, 120])
def test_a_branch_goes_as_far_as_it_was_told_in_either_direction(capability: int) -> None:
    distances = np.array([0, 16, -16, 4, 4096, -(2**20), 2**34, -(2**34)])
    words = drawn_words(len(distances))
    before = words.copy()
    word.put_branch_distances(words, distances, capability)
    assert np.array_equal(word.branch_distances(words, capability), distances)
    assert np.array_equal(word.OPCODE.get(words), word.OPCODE.get(before))
    assert np.array_equal(word.STALL.get(words), word.STALL.get(before))


def test_words_are_the_bytes_of_the_code_in_order() -> None:
    text = bytes(range(32))
    words = word.words_of(text)
    assert word.text_of(words) == text
    assert word.OPCODE.get(words).tolist() == [0x100, 0x110]
    with pytest.raises(ValueError, match="not a whole number"):
        word.words_of(text[:-1])
