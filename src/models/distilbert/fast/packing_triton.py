# type: ignore  (the type checker reads Triton as Python)
"""Packing of a padded batch without the host's knowledge of how many tokens it has."""

import triton
import triton.language as tl


@triton.jit
def pack(
    ids, mask, lengths, starts, packed, positions, sentences, length, ids_row, ids_column, mask_row, mask_column,
    BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Writes the tokens where the mask is not 0 to `packed`, one sentence after another, and their `positions`.

    Program s writes those of sentence s, lengths[s], and starts[s], the place of its first token. The length of a
    sentence that begins with padding is -1. The last program, after all sentences, writes REST tokens of id 0.
    """
    s, item = tl.program_id(0), tl.arange(0, BLOCK)
    counts = tl.zeros([BLOCK], tl.int32)
    for start in range(0, s * length, BLOCK):
        place = start + item
        row, column = place // length, place % length
        value = tl.load(mask + row * mask_row + column * mask_column, mask=place < s * length, other=0)
        counts += (value != 0).to(tl.int32)
    begin = tl.sum(counts, 0)
    tl.store(starts + s, begin)
    if s == sentences:
        rest = tl.arange(0, REST)
        zeros = tl.zeros([REST], tl.int32)
        tl.store(packed + begin + rest, zeros)
        tl.store(positions + begin + rest, zeros)
    else:
        count = tl.zeros([], tl.int32)
        for start in range(0, length, BLOCK):
            column = start + item
            value = tl.load(mask + s * mask_row + column * mask_column, mask=column < length, other=0)
            is_token = (value != 0).to(tl.int32)
            place = begin + count + tl.cumsum(is_token, 0) - 1
            word = tl.load(ids + s * ids_row + column * ids_column, mask=is_token != 0, other=0)
            tl.store(packed + place, word.to(tl.int32), mask=is_token != 0)
            tl.store(positions + place, column, mask=is_token != 0)
            count += tl.sum(is_token, 0)
        first = tl.load(mask + s * mask_row)
        tl.store(lengths + s, tl.where(first != 0, count, -1))
