"""The 128-bit machine word: its fields hold what is put into them, and nothing else changes."""

import numpy as np
import pytest

from codegen.sass.isa import encoding
from codegen.sass.isa.branches import branch_distances, put_branch_distances
from codegen.sass.isa.encoding import Field

FIELDS = {name: value for name, value in vars(encoding).items() if isinstance(value, Field)}


def drawn_words(count: int = 64) -> encoding.Words:
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
        encoding.STALL.put(drawn_words(), 16)


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_branch_goes_as_far_as_it_was_told_in_either_direction(pieces: int) -> None:
    distances = np.array([0, 16, -16, 4, 4096, -(2**20), 2**34, -(2**34)])
    words = drawn_words(len(distances))
    before = words.copy()
    put_branch_distances(words, distances, pieces)
    assert np.array_equal(branch_distances(words, pieces), distances)
    assert np.array_equal(encoding.OPCODE.get(words), encoding.OPCODE.get(before))
    assert np.array_equal(encoding.STALL.get(words), encoding.STALL.get(before))


def test_words_are_the_bytes_of_the_code_in_order() -> None:
    text = bytes(range(32))
    words = encoding.words_of(text)
    assert encoding.text_of(words) == text
    assert encoding.OPCODE.get(words).tolist() == [0x100, 0x110]
    with pytest.raises(ValueError, match="not a whole number"):
        encoding.words_of(text[:-1])
