"""Listings of a kernel's machine code."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

ADDRESS = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*(.*?)\s*;")
LABEL = re.compile(r"(\.L\S+):")


class Instruction(NamedTuple):
    address: str
    name: str
    operands: str


def disassembled(kernel: Path) -> str:
    """Returns nvdisasm's listing of a *.cubin."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return subprocess.run([tool, "-c", kernel], capture_output=True, text=True, check=True).stdout


def parsed(listing: str) -> tuple[list[Instruction], dict[str, int]]:
    """Returns the instructions of a listing, and the index of the instruction after each label."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(code)
        elif address := ADDRESS.match(line):
            code.append(Instruction(*address.groups()))
    return code, labels
