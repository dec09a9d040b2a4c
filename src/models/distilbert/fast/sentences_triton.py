# type: ignore  (the type checker reads Triton as Python)
"""Where the rows of a sentence are, and which sentence a program has; `bounds` are those of `attention_triton`."""

import triton
import triton.language as tl


@triton.jit
def sentence_of(
    bounds, s, sentences, tokens, PADDED: tl.constexpr, FIRST: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """Returns first row, number of rows and of keys of sentence s, and first row and number of its queries.

    The sentence after the last one is a packed batch's padding: it has rows and no keys.
    """
    if PADDED:
        begin, rows, keys = s * LONGEST, LONGEST, tl.load(bounds + s)
        keys = tl.minimum(keys, LONGEST)
    else:
        begin = tl.load(bounds + s)
        rows = tl.load(bounds + tl.minimum(s + 1, sentences), mask=s < sentences, other=tokens) - begin
        keys = tl.where(s < sentences, rows, 0)
    if FIRST:
        first_query, queries = s, tl.where(s < sentences, 1, 0)
    else:
        first_query, queries = begin, rows
    return begin, rows, keys, first_query, queries


@triton.jit
def place_of(bounds, number, sentences, size):
    """Returns the packed sentence of tile `number` and which of its tiles of `size` rows that is.

    The tiles of sentence s begin with number bounds[s] // size + s. Some sentences have one more number than tiles.
    """
    before = tl.zeros([128], tl.int32)
    for start in range(0, sentences + 1, 128):
        s = start + tl.arange(0, 128)
        first = tl.load(bounds + s, mask=s <= sentences, other=0) // size + s
        before += ((first <= number) & (s <= sentences)).to(tl.int32)
    s = tl.sum(before, 0) - 1
    return s, number - (tl.load(bounds + s) // size + s)
