"""Finds kernels whose machine code uses the tensor cores wrongly: `python -m benchmarks.wgmma [DIR | kernels.json ..]`.

On Hopper GPUs the instruction wgmma is asynchronous: its accumulators, and a left operand in registers, may be accessed
only after a wait. Two faults were found; both make equal calls give different results:

- Triton 3.6 and 3.7 let the last three products of a loop iteration run into the next iteration, for which ptxas writes
  the next left operand to the same registers;
- ptxas 12.8, which both include, and 12.9 may then move a conversion to float16 before the last wait.

`settle` in src/gpu/wgmma_triton.py, at the end of each iteration of such a loop, prevents both. The third one is in
`wgmma_descriptors`. This script checks all kernels in Triton's cache (TRITON_CACHE_DIR, ~/.triton/cache) or in DIR, so
run the kernels first, or those of a list, which it compiles without a GPU. It prints a line for each kernel with a
fault, and exits with 1 if there is one.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.machine_code import Instruction, disassembled, parsed
from benchmarks.wgmma_descriptors import wrong_descriptors
from src.system.workers import cpu_count

REGISTER = re.compile(r"\bR(\d+)\b")
OPERAND_REGISTERS = 4  # of a thread, for the left operand
WIDTHS = (("LDSM", 4), (".128", 4), (".64", 2), ("CS2R", 2), (".WIDE", 2))  # registers that an instruction writes
READERS = ("ST", "RED", "ATOMS", "BAR", "LDGSTS", "SYNCS", "EXIT", "BRA")  # write no register
TARGET = re.compile(r"\((\.L\S+?)\)")


class Finding(NamedTuple):
    instruction: Instruction
    registers: tuple[int, ...]  # accessed too early


class Product(NamedTuple):
    """The registers of a wgmma instruction: its accumulators and its left operand."""

    accumulators: set[int]
    operand: set[int]


def findings(machine_code: str) -> Iterator[Finding]:
    """Instructions that access accumulators of a product that may still run, or write its left operand.

    `machine_code` is a listing of nvdisasm. Follows the code in order and each loop twice, so that products left
    running at the end of a loop are checked against its start.
    """
    code, labels = parsed(machine_code)
    running: list[Product] = []
    repeated: set[int] = set()
    at = 0
    while at < len(code):
        instruction = code[at]
        if instruction.name.startswith("HGMMA"):
            running.append(product(instruction))
        elif instruction.name.startswith("WARPGROUP.DEPBAR"):
            left = int(instruction.operands.rsplit(",", 1)[1], 16)
            del running[: max(0, len(running) - left)]
        elif touched := {
            *(registers(instruction) & set[int]().union(*(one.accumulators for one in running))),
            *(written(instruction) & set[int]().union(*(one.operand for one in running))),
        }:
            yield Finding(instruction, tuple(sorted(touched)))
        target = TARGET.search(instruction.operands) if instruction.name == "BRA" else None
        begin = labels.get(target[1], at + 1) if target else at + 1
        if begin <= at and at not in repeated:
            repeated.add(at)
            at = begin
        else:
            at += 1


def registers(instruction: Instruction) -> set[int]:
    """Returns the registers that an instruction names; of a range only the first."""
    return {int(number) for number in REGISTER.findall(instruction.operands)}


def written(instruction: Instruction) -> set[int]:
    """Returns the registers that an instruction writes: its first operand."""
    first = re.match(r"R(\d+)\b", instruction.operands)
    if first is None or instruction.name.startswith(READERS):
        return set()
    width = next((width for part, width in WIDTHS if part in instruction.name), 1)
    return set(range(int(first[1]), int(first[1]) + width))


def product(instruction: Instruction) -> Product:
    """Returns the registers of HGMMA.64x128x16.F32 R24, R100, ...; a thread has one accumulator for two columns."""
    columns = int(instruction.name.split(".")[1].split("x")[1])
    operands = [operand.strip() for operand in instruction.operands.split(",")]
    accumulator, left = (REGISTER.match(operand) for operand in operands[:2])
    assert accumulator is not None
    first = int(accumulator[1])
    operand = set(range(int(left[1]), int(left[1]) + OPERAND_REGISTERS)) if left else set[int]()
    return Product(set(range(first, first + columns // 2)), operand)


def compile_lists(lists: Sequence[str]) -> None:
    """Compiles the kernels of lists (src/gpu/precompile.py), which needs no GPU, into Triton's cache."""
    from src.gpu.precompile import compile_kernel, import_kernels, side_by_side

    for path in lists:
        if not Path(path).is_file():
            print(f"{path} is no file: name lists as src/models/dlrm/fast/kernels.json", file=sys.stderr)
            sys.exit(2)
    entries = [entry for path in lists for entry in json.loads(Path(path).read_text("utf-8"))]
    import_kernels(entries)
    if not side_by_side([partial(compile_kernel, entry) for entry in entries], cpu_count()):
        sys.exit(1)


def main() -> None:
    lists = [argument for argument in sys.argv[1:] if argument.endswith(".json")]
    if len(sys.argv) > 2 and len(lists) < len(sys.argv) - 1:
        print("usage: python -m benchmarks.wgmma [DIR | kernels.json ..]", file=sys.stderr)
        sys.exit(2)
    with TemporaryDirectory() as new:
        home = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
        if lists:
            home = os.environ["TRITON_CACHE_DIR"] = new
            compile_lists(lists)
        sys.exit(check(Path(sys.argv[1] if sys.argv[1:] and not lists else home)))


def check(folder: Path) -> int:
    """Prints the faults of the kernels in a folder; returns the exit code."""
    kernels = sorted(folder.rglob("*.cubin"))
    if not kernels:
        print(f"{folder} has no compiled kernel (*.cubin): run the kernels on a GPU first", file=sys.stderr)
        return 2
    using = early = wrong = 0
    with ThreadPoolExecutor(cpu_count()) as pool:
        listings = pool.map(disassembled, kernels)
    for kernel, listing in zip(kernels, listings, strict=True):
        using += "HGMMA" in listing
        not_waiting = [finding.instruction for finding in findings(listing)]
        misplaced = wrong_descriptors(parsed(listing)[0])
        early += bool(not_waiting)
        wrong += bool(misplaced)
        for what, instructions in (("do not wait", not_waiting), ("have a wrong descriptor", misplaced)):
            if instructions:
                first = f"{instructions[0].address} {instructions[0].name} {instructions[0].operands}"
                print(f"{kernel}: {len(instructions)} instructions {what}, first {first}")
    print(
        f"{len(kernels)} kernels, {using} with wgmma, {early} that do not wait for it, {wrong} with wrong descriptors"
    )
    return int(early + wrong > 0)


if __name__ == "__main__":
    main()
