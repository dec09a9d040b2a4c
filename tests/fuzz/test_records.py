"""Every value of a record is replaced by values of other types: each report of it is valid, or one printable line.

`python -m tests.fuzz.test_records 1000 [KEY ...]` tries 1,000 mutations at random, or of keys that begin so.
"""

import io
import json
import random
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from src.errors import LONGEST, UserError
from src.printable import printable
from src.report.cli import main as report
from src.report.keys import settings
from src.report.load import load
from src.report.text import summary
from src.report.to_wandb import rows
from tests.support import ROOT

RECORDS = ROOT / "docs" / "results" / "records"
COMPARISONS, COMPARISON = RECORDS.parent / "beside", "se3_transformer_train_240_amp"
# Records that together have every key, each with another record that it is compared with.
BASES = {
    "dlrm_weak_65536_x2": "dlrm_weak_65536_x1",
    "distilbert_packed_96_bf16": "distilbert_packed_96_tf32",
    "examples/quickstart": "moflow_train_512_amp",
    "moflow_generate_quality_1": "moflow_generate_512_amp",
    "se3_transformer_homo_1": "se3_transformer_homo_2",
}
GONE = object()  # the key is not there
VALUES: tuple[Any, ...] = (
    GONE, None, True, 0, -1, 1.5, 2**62, 1e59, 5e-324, "", "x", "../x", "=1|x", "\x1b[31m", [], {}, [None], {"x": []},
    [[]], [{}], ["x"], {"": {"x": 1}}, [1.5], {"x": "y"},
)  # fmt: skip
COUNT = 3  # of each half
LONG = 2  # items of a list that are mutated
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("RUN",), ("RUN", "OTHER", "--format", "csv"), ("RUN", "--format", "json"),
    ("RUN", "--format", "paddle", "--output", "OUT"), ("compare", "RUN"), ("compare", "RUN", "OTHER"),
    ("compare", "OTHER", "RUN", "--format", "csv"), ("compare", "RUN", "OTHER", "--format", "json"),
    ("compare", "RUN", "OTHER", "--format", "latex"), ("compare", "OTHER", "--against", "RUN"),
    ("compare", "RUN", "--against", "SAME"), ("stability", "RUN", "SAME"), ("stability", "RUN", "--format", "csv"),
    ("scaling", "OTHER", "RUN"), ("verify", "RUN"),
)  # fmt: skip
DRAWN: tuple[tuple[str, ...], ...] = (  # slower ones
    ("compare", "RUN", "OTHER", "--format", "html", "--output", "OUT/page.html"),
    ("stability", "RUN", "--picture", "OUT/seeds.png"),
    ("scaling", "OTHER", "RUN", "--picture", "OUT/scaling.png"),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every value inside a JSON value; of a list those of its first and last items."""
    keys: Sequence[Any] = list(value) if isinstance(value, dict) else []
    if isinstance(value, list):
        keys = [*range(min(len(value), LONG)), *([len(value) - 1] if len(value) > LONG else [])]
    for key in keys:
        yield (*path, key)
        yield from places(value[key], (*path, key))


def mutated(content: Any, path: Sequence[Any], value: Any) -> Any:
    """Returns a copy with another value at a path."""
    node = copy = deepcopy(content)
    for key in path[:-1]:
        node = node[key]
    if value is GONE:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return copy


def mutations() -> list[tuple[str, tuple[Any, ...], Any]]:
    """Returns (name of the record, path, value) of every mutation."""
    contents = {name: json.loads((RECORDS / f"{name}.json").read_text()) for name in BASES}
    return [(name, path, value) for name, content in contents.items() for path in places(content) for value in VALUES]


def comparison_mutations() -> list[tuple[str, tuple[Any, ...], Any]]:
    """Returns what `mutations` does, of a comparison with other code."""
    content = json.loads((COMPARISONS / f"{COMPARISON}.json").read_text())
    return [(COMPARISON, path, value) for path in places(content) for value in VALUES]


def failure(run: Any, shown: str) -> str | None:
    """Runs a report; returns what it did that was neither valid output nor one printable line with exit code 2."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{shown}: {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"[:300]
    lines = [line for line in err.getvalue().splitlines() if not line.startswith("note: ")]
    expected = 1 if code == 2 else 0
    if code not in (0, 1, 2) or len(lines) != expected or any(len(line) > LONGEST + 50 for line in lines):
        return f"{shown}: exit code {code}, {len(lines)} lines on stderr: {lines[:2]}"
    printed = out.getvalue() + err.getvalue()
    return None if printable(printed) == printed else f"{shown}: not printable"


def failures(name: str, path: Sequence[Any], value: Any, folder: Path, drawn: bool = False) -> Iterator[str]:
    """Yields what the reports of one mutated record did wrong."""
    content = json.loads((RECORDS / f"{name}.json").read_text())
    run = folder / "run" / "result.json"
    run.parent.mkdir(exist_ok=True)
    run.write_text(json.dumps(mutated(content, path, value)))
    words = {"RUN": run, "OTHER": RECORDS / f"{BASES[name]}.json", "SAME": RECORDS / f"{name}.json", "OUT": folder}
    what = f"{name} {'.'.join(map(str, path))}={'GONE' if value is GONE else repr(value)}"
    for command in (*COMMANDS, *(DRAWN if drawn else ())):
        arguments = [str(words.get(word, word)).replace("OUT/", f"{folder}/") for word in command]
        if said := failure(lambda arguments=arguments: report(arguments), f"{what}: {' '.join(command)}"):
            yield said

    def rest() -> int:
        try:
            record = load([run]).runs[0][1]
        except UserError as error:
            print(error, file=sys.stderr)
            return 2
        print(summary(record, {"record": run}))
        json.dumps([rows(record), record.to_dict(), settings(record.config)], allow_nan=False)
        return 0

    if said := failure(rest, f"{what}: summary"):
        yield said


def comparison_failures(name: str, path: Sequence[Any], value: Any, folder: Path) -> Iterator[str]:
    """Yields what the commands did wrong that read a mutated comparison."""
    content = json.loads((COMPARISONS / f"{name}.json").read_text())
    results = folder / "results"
    for part in ("records", "beside"):
        (results / part).mkdir(parents=True, exist_ok=True)
    (results / "records" / "one.json").write_bytes((RECORDS / "examples/quickstart.json").read_bytes())
    file = results / "beside" / "one.json"
    file.write_text(json.dumps(mutated(content, path, value)))
    what = f"{name} {'.'.join(map(str, path))}={'GONE' if value is GONE else repr(value)}"
    for arguments in (["verify", str(file)], ["--docs", str(results)]):
        if said := failure(lambda arguments=arguments: report(arguments), f"{what}: {arguments[0]}"):
            yield said


@pytest.mark.slow
def test_a_comparison_with_values_of_other_types_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    for mutation in random.Random(1).sample(comparison_mutations(), 2 * COUNT):
        assert list(comparison_failures(*mutation, tmp_path)) == []


@pytest.mark.slow
def test_a_record_with_values_of_other_types_is_reported_or_refused_in_one_line(tmp_path: Path) -> None:
    """Half of the mutations are of keys without a type of their own: those of config, environment and history."""
    draw, every = random.Random(1), mutations()
    free = [mutation for mutation in every if mutation[1][0] in ("config", "environment", "history")]
    for number, mutation in enumerate([*draw.sample(free, COUNT), *draw.sample(every, COUNT)]):
        assert list(failures(*mutation, tmp_path, drawn=number == 0)) == []


def main(count: int, prefixes: Sequence[str]) -> int:
    """Tries `count` mutations drawn at random; prints what failed, by kind."""
    every = [
        mutation
        for mutation in (*mutations(), *comparison_mutations())
        if not prefixes or ".".join(map(str, mutation[1])).startswith(tuple(prefixes))
    ]
    chosen = random.Random(0).sample(every, min(count, len(every)))
    kinds, total = Counter[str](), 0
    example: dict[str, str] = {}
    with TemporaryDirectory() as folder:
        for number, mutation in enumerate(chosen):
            of_comparison = mutation[0] == COMPARISON
            home = Path(folder)
            for said in (
                comparison_failures(*mutation, home)
                if of_comparison
                else failures(*mutation, home, drawn=number % 20 == 0)
            ):
                total += 1
                kind = said.rpartition("(")[2] if said.endswith(")") else said.partition(": ")[2]
                kinds[kind] += 1
                example.setdefault(kind, said)
    print(f"{len(chosen):,} of {len(every):,} mutations, {total:,} failures of {len(kinds)} kinds")
    for kind, times in kinds.most_common(40):
        print(f"    {times:,} x {kind}: {example[kind]}")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
