"""Writes sentences of a tiny vocabulary in files like GLUE's."""

import random
from pathlib import Path

WORDS = ("a", "good", "bad", "film", "very", "long", "story", "with", "wit", ".")
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "##ful")
UNK, CLS, SEP = 1, 2, 3


def write_vocabulary(folder: Path, pieces: tuple[str, ...] = PIECES) -> Path:
    """Writes vocab.txt; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return folder


def sentences(count: int, seed: int = 0) -> list[str]:
    """Random sentences of one to twenty words."""
    source = random.Random(seed)
    return [" ".join(source.choices(WORDS, k=source.randint(1, 20))) for _ in range(count)]


def labels(count: int) -> list[int]:
    return [row % 3 % 2 for row in range(count)]


def write_files(folder: Path, *, train: int = 40, dev: int = 11, test: int = 5) -> Path:
    """Writes train.tsv, dev.tsv and test.tsv of that many sentences; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, count) in enumerate({"train": train, "dev": dev}.items()):
        rows = zip(sentences(count, seed), labels(count), strict=True)
        write_lines(folder / f"{split}.tsv", "sentence\tlabel", *(f"{text} \t{label}" for text, label in rows))
    write_lines(folder / "test.tsv", "index\tsentence", *(f"{i}\t{text}" for i, text in enumerate(sentences(test, 2))))
    return folder


def write_lines(path: Path, *lines: str) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
