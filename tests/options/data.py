"""Small data of every kind, made here: molecules, sentences, clicks and images in the files that datamodules read."""

import random
from itertools import product
from pathlib import Path

from src.datamodules.images.cifar10_files import CLASSES
from tests.support.criteo_rows import lines
from tests.support.sst2_rows import labels, sentences, write_files, write_vocabulary
from tests.support.tiny_mobilenet import encoded, picture

HEADS = ("C", "CC", "N", "O", "F", "Cl", "Br", "N#C", "CO", "CN", "CS", "CC(C)", "OC", "NC", "CC(=O)", "O=C")
CORES = ("C", "CC", "CCC", "C(C)C", "C(O)C", "C1CC1", "CCO", "CNC", "c1ccccc1", "c1ccncc1", "CC(=O)C", "COC")
TAILS = ("C", "CC", "O", "N", "F", "C#N", "C=O", "OC")


def write_data(home: Path) -> dict[str, Path]:
    """Writes the files that are not there yet; returns their paths by name."""
    files = {
        "smiles": home / "my.smiles",
        "molecules": home / "my.csv",
        "sst2": home / "sst2_raw",
        "vocabulary": home / "vocabulary",
        "sentences": home / "reviews.csv",
        "clicks": home / "clicks.csv",
        "criteo": home / "criteo_raw",
        "images": home / "images",
        "cifar10": home / "cifar10_images",
    }
    if (home / "written").exists():
        return files
    home.mkdir(parents=True, exist_ok=True)
    write_molecules(files["smiles"], files["molecules"])
    write_files(files["sst2"], train=200, dev=48, test=20)
    write_vocabulary(files["vocabulary"])
    reviews = [f"{text},{label}" for text, label in zip(sentences(1720), labels(1720), strict=True)]
    write_table(files["sentences"], "text,label", reviews)
    write_clicks(files["clicks"])
    files["criteo"].mkdir()
    (files["criteo"] / "train.txt").write_text("".join(lines(3000, seed=0)), encoding="utf-8")
    for name in ("images", "cifar10"):
        write_images(files[name], 32 if name == "cifar10" else 72, "test" if name == "cifar10" else "val")
    (home / "written").touch()
    return files


def write_molecules(smiles: Path, table: Path) -> None:
    """Writes 1,500 different molecules of up to 16 atoms as SMILES, and 800 of them with a number that they decide."""
    texts = [head + core + tail for head, core, tail in product(HEADS, CORES, TAILS)]
    random.Random(0).shuffle(texts)
    smiles.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    small = sorted(texts, key=len)[:800]
    write_table(table, "smiles,energy", [f"{text},{len(text) + 0.3 * text.count('N'):.2f}" for text in small])


def write_clicks(file: Path) -> None:
    """Writes 4,000 clicks whose label two of their columns decide."""
    rng = random.Random(0)
    rows = []
    for _ in range(4000):
        price, age, site, device = rng.random(), rng.randint(18, 80), rng.randrange(300), rng.choice("abc")
        rows.append(f"{int(price + site / 300 > 1)},{price:.3f},{age},site{site},{device}")
    write_table(file, "label,price,age,site,device", rows)


def write_images(folder: Path, pixels: int, other: str) -> None:
    """Writes 240 images to train and 40 to the other split, in CIFAR-10's classes, each of its class's colours."""
    for split, count in (("train", 24), (other, 4)):
        for number, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            for row in range(count):
                image = picture(pixels, pixels, seed=number)
                (folder / split / name / f"{split}_{row:03}.png").write_bytes(encoded(image, "PNG"))


def write_table(file: Path, head: str, rows: list[str]) -> None:
    file.write_text("\n".join([head, *rows, ""]), encoding="utf-8")
