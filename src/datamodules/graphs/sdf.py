"""Records of .sdf and .mol files, with RDKit's reader for their properties."""

import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from rdkit import Chem, rdBase

from src.datamodules.graphs.records import Record
from src.errors import UserError

END, MARK = re.compile(r"^M  END", re.MULTILINE), re.compile(r"^\$\$\$\$.*\n?", re.MULTILINE)
HEADER = re.compile(r"^>.*?<([^>\n]*)>.*$", re.MULTILINE)  # of a property
# One atom, before the properties: RDKit reads these also where it cannot read the molecule, whose reason comes later.
STUB = "\n\n\n  1  0  0  0  0  0  0  0  0  0999 V2000\n    0.0000    0.0000    0.0000 C   0  0\nM  END\n"


def records(path: Path, text: str) -> Iterator[Record]:
    """Yields the records of a file; the end mark of the last one may be missing.

    Raises UserError that names the record, and the line it begins in, for one that cannot be read.
    """
    line, number = 1, 0
    for block in MARK.split(text):
        if block.strip():
            number += 1
            where = f"{path}: record {number} (line {line})"
            ends = list(END.finditer(block))
            if not ends:
                raise UserError(f"{path} is truncated: record {number} has no line 'M  END' (it begins in line {line})")
            if len(ends) > 1:
                second = line + block[: ends[1].start()].count("\n")
                raise UserError(
                    f"{where} has a second molecule, which ends in line {second}: write a line $$$$ between the two"
                )
            title = block.split("\n", 1)[0].strip()
            values = _properties(block[ends[0].end() :], where)
            yield Record(f"record {number}" + f" ({title})" * bool(title), "sdf", block, values)
        line += block.count("\n") + 1


def _properties(text: str, where: str) -> dict[str, str]:
    """Returns the properties of a record as written, those of several lines too. Raises UserError for one twice."""
    # RDKit takes what follows a blank line for the next property only if the line is empty, and if there is one.
    clean = HEADER.sub(lambda header: f"\n{header[0]}", re.sub(r"^[ \t]+$", "", text, flags=re.MULTILINE))
    names = HEADER.findall(clean)
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None or "" in names:
        problem = "a property without a name" if twice is None else f"the property {twice} twice"
        raise UserError(f"{where} has {problem}: leave it out")
    if not names:
        return {}
    with rdBase.BlockLogs():
        supplier = Chem.ForwardSDMolSupplier(BytesIO(f"{STUB}{clean.lstrip()}\n\n$$$$\n".encode()), sanitize=False)
        mols: list[Chem.Mol | None] = list(supplier)
    values = {name: mol.GetProp(name) for mol in mols if mol is not None for name in mol.GetPropNames()}
    if set(values) != set(names):
        raise UserError(f"{where} has properties that cannot be read; expected '>  <name>', a value, and an empty line")
    return values
