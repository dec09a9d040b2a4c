"""Products on the tensor cores that get a wrong address of a factor in shared memory; `wgmma` is the command.

A descriptor of wgmma is two words: where the factor begins, and how it is laid out. The second one is known when a
kernel is compiled. ptxas 12.8, which Triton 3.6 and 3.7 bring for Hopper GPUs, sometimes computes it from a register
that has another value, or none, where two factors with different layouts lie in the same place one after the other:
sums are then wrong, or addresses are illegal. ptxas 12.9, 13.0 and 13.1 made none of the code that showed this wrong.
"""

import re
from collections.abc import Iterator, Sequence

from benchmarks.machine_code import Instruction

DESCRIPTOR = re.compile(r"gdesc\[UR(\d+)\]")
REGISTER = re.compile(r"(U?R)(\d+)")
NUMBER = re.compile(r"-?(0x[0-9a-f]+|\d+)")
PREDICATE = re.compile(r"!?U?P(T|\d+)")
MODIFIERS = re.compile(r"^[-~|!]|\.reuse$|\|$")
# Their result is a constant where all that they read is.
ARITHMETIC = {
    "IADD3", "IADD3.X", "IMAD.MOV", "IMAD.MOV.U32", "IMAD.U32", "IMAD.X", "LOP3.LUT", "MOV", "R2UR", "SEL",
    "UIADD3", "UIADD3.X", "ULOP3.LUT", "UMOV", "USEL",
}  # fmt: skip
WIDTHS = ((".128", 4), (".M88.4", 4), (".64", 2), (".WIDE", 2), ("CS2R", 2))  # registers that are written
LOCAL = re.compile(r"\[R1(?:\+0x([0-9a-f]+))?\]")  # of a thread: where registers are kept that are too many


def wrong_descriptors(code: Sequence[Instruction]) -> list[Instruction]:
    """Returns the products a second word of whose descriptors is not a constant; follows the code twice, in order."""
    constants, kept = {"RZ", "URZ"}, set[int]()
    wrong: dict[str, Instruction] = {}
    for instruction in [*code, *code]:
        operands = [MODIFIERS.sub("", part.strip()) for part in instruction.operands.split(",")]
        operands = [part for part in operands if not PREDICATE.fullmatch(part)]
        if instruction.name.startswith("HGMMA"):
            if not all(word in constants for word in second_words(operands)):
                wrong[instruction.address] = instruction
            columns = int(instruction.name.split(".")[1].split("x")[1])
            constants.difference_update(names(operands[0], columns // 2))
        elif instruction.name.startswith(("STL", "LDL")):
            kept_apart(instruction, operands, constants, kept)
        elif not instruction.name.startswith(("ST", "RED", "BAR", "ATOM")) and REGISTER.fullmatch(operands[0]):
            update(instruction.name, operands, constants)
    return list(wrong.values())


def second_words(operands: Sequence[str]) -> Iterator[str]:
    """Yields the second words of the descriptors of HGMMA's factors, the left of which may be in registers."""
    place = next(match for part in operands if (match := DESCRIPTOR.match(part)))
    first = int(place[1])
    if not REGISTER.fullmatch(operands[1]):
        yield f"UR{first + 1}"
    yield f"UR{first + 3}"


def update(name: str, operands: Sequence[str], constants: set[str]) -> None:
    """Notes whether the registers that an instruction writes have constants."""
    width = next((width for part, width in WIDTHS if part in name), 1)
    written = names(operands[0], width)
    if name == "UIADD3.64":
        sources = names(operands[1], 2) if operands[1] != "URZ" else ["URZ", "URZ"]
        is_constant = [source in constants for source in sources]
    else:
        reads = all(source in constants or NUMBER.fullmatch(source) for source in operands[1:])
        is_constant = [name in ARITHMETIC and reads] * width
    for register, whether in zip(written, is_constant, strict=True):
        constants.add(register) if whether else constants.discard(register)


def kept_apart(instruction: Instruction, operands: Sequence[str], constants: set[str], kept: set[int]) -> None:
    """Notes whether what STL puts into a thread's memory and LDL takes from it are constants."""
    place = LOCAL.search(instruction.operands)
    register = next((part for part in operands if REGISTER.fullmatch(part)), None)
    if place is None or register is None:
        return
    width = next((width for part, width in WIDTHS if part in instruction.name), 1)
    begin = int(place[1] or "0", 16)
    for word, name in enumerate(names(register, width)):
        at = begin + 4 * word
        if instruction.name.startswith("STL"):
            kept.add(at) if name in constants else kept.discard(at)
        else:
            constants.add(name) if at in kept else constants.discard(name)


def names(register: str, count: int) -> list[str]:
    """Returns the names of `count` registers from this one on."""
    match = REGISTER.fullmatch(register)
    assert match is not None
    return [f"{match[1]}{int(match[2]) + number}" for number in range(count)]
