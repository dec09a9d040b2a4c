"""Finds kernels whose machine code does not wait for the tensor cores: `python -m benchmarks.wgmma_waits [DIR]`.

On Hopper GPUs the instruction wgmma is asynchronous: its accumulators, and a left operand in registers, may be accessed
only after a wait. Two faults were found; both make equal calls give different results:

- Triton 3.6 and 3.7 let the last three products of a loop iteration run into the next iteration, for which ptxas writes
  the next left operand to the same registers;
- ptxas 12.8, which both include, and 12.9 may then move a conversion to float16 before the last wait.

`settle` in src/gpu/wgmma_triton.py, at the end of each iteration of such a loop, prevents both. This script checks all
kernels in Triton's cache (TRITON_CACHE_DIR, ~/.triton/cache) or in DIR, so run the kernels first. It prints a line for
each kernel that does not wait, and exits with 1 if there is one.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from src.system.workers import cpu_count

ADDRESS = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*(.*?)\s*;")
LABEL = re.compile(r"(\.L\S+):")
REGISTER = re.compile(r"\bR(\d+)\b")
OPERAND_REGISTERS = 4  # of a thread, for the left operand
WIDTHS = (("LDSM", 4), (".128", 4), (".64", 2), ("CS2R", 2), (".WIDE", 2))  # registers that an instruction writes
READERS = ("ST", "RED", "ATOMS", "BAR", "LDGSTS", "SYNCS", "EXIT", "BRA")  # write no register
TARGET = re.compile(r"\((\.L\S+?)\)")


class Instruction(NamedTuple):
    address: str
    name: str
    operands: str


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


def parsed(machine_code: str) -> tuple[list[Instruction], dict[str, int]]:
    """Returns the instructions of a listing, and the index of the instruction after each label."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in machine_code.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(code)
        elif address := ADDRESS.match(line):
            code.append(Instruction(*address.groups()))
    return code, labels


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


def disassembled(kernel: Path) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return subprocess.run([tool, "-c", kernel], capture_output=True, text=True, check=True).stdout


def main() -> None:
    if len(sys.argv) > 2:
        print("usage: python -m benchmarks.wgmma_waits [DIR]", file=sys.stderr)
        sys.exit(2)
    home = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else home)
    kernels = sorted(folder.rglob("*.cubin"))
    if not kernels:
        print(f"{folder} has no compiled kernel (*.cubin): run the kernels on a GPU first", file=sys.stderr)
        sys.exit(2)
    using = early = 0
    with ThreadPoolExecutor(cpu_count()) as pool:
        codes = pool.map(disassembled, kernels)
    for kernel, code in zip(kernels, codes, strict=True):
        using += "HGMMA" in code
        not_waiting = list(findings(code))
        if not_waiting:
            early += 1
            first = not_waiting[0].instruction
            print(
                f"{kernel}: {len(not_waiting)} instructions do not wait, "
                f"first {first.address} {first.name} {first.operands}"
            )
    print(f"{len(kernels)} kernels, {using} with wgmma, {early} that do not wait for it")
    sys.exit(1 if early else 0)


if __name__ == "__main__":
    main()
