"""Random click logs with the peculiarities of real ones, and a slow reference for their preparation."""

import gzip
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

NUM_DAYS = 24
Row = tuple[int, tuple[float, ...], tuple[int, ...]]


def lines(count: int, seed: int) -> list[str]:
    """`count` lines; the first number of each identifies it, in up to 60,000 lines of a seed."""
    generator = np.random.default_rng(seed)
    result = []
    for i in range(count):
        numbers = [str(i)]
        for column in range(12):
            number = int(np.exp(generator.gamma(2, 1.5))) - 3
            special = generator.choice(["", "0", "-1", "-2", "65532", "65533", "1618112", "-0", "2147483647", "007"])
            numbers.append(str(special) if generator.random() < 0.3 else str(max(number, -2) + column))
        ids = []
        for column in range(26):
            rank = int((3 + 40 * column) ** generator.random())
            value = (rank * 2654435761 + column * 97) % 2**32 if rank > 2 else (0, 0, 2**32 - 1)[rank]
            text = f"{value:08x}" if column % 5 else f"{value:x}" if column else f"{value:08X}"
            ids.append("" if generator.random() < 0.15 else text)
        result.append("\t".join([str(generator.integers(2)), *numbers, *ids]) + "\n")
    return result


def write(path: Path, content: list[str]) -> Path:
    data = "".join(content).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_days(folder: Path, content: list[str]) -> list[list[str]]:
    """Writes day files of different sizes, every third one compressed; returns the lines of each day."""
    cuts = np.linspace(0, 1, NUM_DAYS + 1) ** 1.2 * len(content)
    days = [content[int(a) : int(b)] for a, b in pairwise(cuts)]
    for day, day_lines in enumerate(days):
        write(folder / f"day_{day}{'' if day % 3 else '.gz'}", day_lines)
    return days


def expected(
    trained: list[str], held_out: list[str], frequency_limit: int, everything: bool
) -> tuple[list[int], dict[str, list[Row]]]:
    """Returns the expected cardinalities, and the rows of each split in the order of the log."""
    numbers = []
    for column in range(14, 40):
        counts: Counter[int] = Counter()
        for line in trained + held_out * everything:
            field = line.rstrip("\n").split("\t")[column]
            if field:
                counts[int(field, 16)] += 1
        kept = [value for value, count in counts.items() if count >= frequency_limit]
        kept.sort(key=lambda value: (-counts[value], value))
        numbers.append({value: number for number, value in enumerate(kept, 1)})
    half = (len(held_out) + 1) // 2
    splits = {"train": trained, "test": held_out[:half], "validation": held_out[half:]}
    rows = {name: [_row(line, numbers) for line in content] for name, content in splits.items()}
    return [len(mapping) + 1 for mapping in numbers], rows


def _row(line: str, numbers: list[dict[int, int]]) -> Row:
    fields = line.rstrip("\n").split("\t")
    numerical = tuple(float(np.float16(math.log(int(field) + 3))) if field else 0.0 for field in fields[1:14])
    ids = tuple(
        mapping.get(int(field, 16), 0) if field else 0 for mapping, field in zip(numbers, fields[14:], strict=True)
    )
    return int(fields[0]), numerical, ids


def read(folder: Path, split: str, cardinalities: list[int]) -> list[Row]:
    """Returns the rows of a split binary directory, read without the code under test."""
    labels = np.fromfile(folder / split / "label.bin", np.uint8)
    numerical = np.fromfile(folder / split / "numerical.bin", np.float16).reshape(-1, 13)
    dtypes = ["int8" if size < 127 else "int16" if size < 32767 else "int32" for size in cardinalities]
    ids = [np.fromfile(folder / split / f"cat_{i}.bin", dtype) for i, dtype in enumerate(dtypes)]
    columns = zip(
        labels.tolist(), numerical.tolist(), zip(*[table.tolist() for table in ids], strict=True), strict=True
    )
    return [(label, tuple(numbers), values) for label, numbers, values in columns]
