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
Value = frozenset[str]  # of what unknown values it is the exclusive or: registers are swapped by three of these
CONSTANT: Value = frozenset()
UNKNOWN: Value = frozenset({"unknown"})
COPIES = {"IMAD.MOV.U32", "IMAD.U32", "MOV", "R2UR", "UMOV"}
XOR = "0x3c"
# Their result is a constant where all that they read is.
ARITHMETIC = {
    "CS2R", "IADD3", "IADD3.X", "IMAD.X", "LOP3.LUT", "SEL", "UIADD3", "UIADD3.X", "ULOP3.LUT", "USEL",
}  # fmt: skip
WIDTHS = ((".128", 4), (".M88.4", 4), (".64", 2), (".WIDE", 2), ("CS2R", 2))  # registers that are written
LOCAL = re.compile(r"\[R1(?:\+0x([0-9a-f]+))?\]")  # of a thread: where registers are kept that are too many


def wrong_descriptors(code: Sequence[Instruction]) -> list[Instruction]:
    """Returns the products a second word of whose descriptors is not a constant; follows the code twice, in order."""
    values = {"RZ": CONSTANT, "URZ": CONSTANT, "SRZ": CONSTANT}
    kept: dict[int, Value] = {}
    wrong: dict[str, Instruction] = {}
    for instruction in [*code, *code]:
        operands = [MODIFIERS.sub("", part.strip()) for part in instruction.operands.split(",")]
        operands = [part for part in operands if not PREDICATE.fullmatch(part)]
        if instruction.name.startswith("HGMMA"):
            if any(values.get(word, UNKNOWN) != CONSTANT for word in second_words(operands)):
                wrong[instruction.address] = instruction
            columns = int(instruction.name.split(".")[1].split("x")[1])
            values.update(dict.fromkeys(names(operands[0], columns // 2), UNKNOWN))
        elif instruction.name.startswith(("STL", "LDL")):
            keep_apart(instruction, operands, values, kept)
        elif not instruction.name.startswith(("ST", "RED", "BAR", "ATOM")) and REGISTER.fullmatch(operands[0]):
            update(instruction, operands, values)
    return list(wrong.values())


def second_words(operands: Sequence[str]) -> Iterator[str]:
    """Yields the second words of the descriptors of HGMMA's factors, the left of which may be in registers."""
    place = next(match for part in operands if (match := DESCRIPTOR.match(part)))
    first = int(place[1])
    if not REGISTER.fullmatch(operands[1]):
        yield f"UR{first + 1}"
    yield f"UR{first + 3}"


def update(instruction: Instruction, operands: Sequence[str], values: dict[str, Value]) -> None:
    """Notes what an instruction writes."""
    name = instruction.name
    width = next((width for part, width in WIDTHS if part in name), 1)
    sources = [CONSTANT if NUMBER.fullmatch(part) else values.get(part, UNKNOWN) for part in operands[1:]]
    if name == "UIADD3.64":
        pair = names(operands[1], 2) if REGISTER.fullmatch(operands[1]) else [operands[1]] * 2
        new = [values.get(source, UNKNOWN) for source in pair]
    elif name in COPIES:
        new = [sources[-1]]
    elif name.endswith("LOP3.LUT") and operands[4:] == [XOR]:
        new = [sources[0] ^ sources[1] ^ sources[2]]
    else:
        is_constant = name in ARITHMETIC and all(source == CONSTANT for source in sources)
        new = [CONSTANT if is_constant else frozenset({f"{instruction.address}:{word}"}) for word in range(width)]
    values.update(zip(names(operands[0], len(new)), new, strict=True))


def keep_apart(
    instruction: Instruction, operands: Sequence[str], values: dict[str, Value], kept: dict[int, Value]
) -> None:
    """Notes what STL puts into a thread's memory and LDL takes from it."""
    place = LOCAL.search(instruction.operands)
    register = next((part for part in operands if REGISTER.fullmatch(part)), None)
    if place is None or register is None:
        return
    width = next((width for part, width in WIDTHS if part in instruction.name), 1)
    begin = int(place[1] or "0", 16)
    for word, name in enumerate(names(register, width)):
        if instruction.name.startswith("STL"):
            kept[begin + 4 * word] = values.get(name, UNKNOWN)
        else:
            values[name] = kept.get(begin + 4 * word, UNKNOWN)


def names(register: str, count: int) -> list[str]:
    """Returns the names of `count` registers from this one on."""
    match = REGISTER.fullmatch(register)
    assert match is not None
    return [f"{match[1]}{int(match[2]) + number}" for number in range(count)]
