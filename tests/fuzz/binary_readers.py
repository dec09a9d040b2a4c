"""Readers of archives, arrays, weights and images, and of the small files beside them, for `test_readers.py`."""

import bz2
import gzip
import io
import json
import lzma
import shutil
import warnings
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save

from src.datamodules.clicks.check import STAMP, SUMS, check_values, expect_checked
from src.datamodules.clicks.split_binary import SplitBinary
from src.datamodules.graphs import qm9_dgl
from src.datamodules.graphs.prepare import parse_chunk
from src.datamodules.images.check import range_note, verdict
from src.datamodules.images.decode import NUM_DRAWS, load
from src.datamodules.images.rendering import Rendering
from src.datamodules.splits import read_split
from src.datamodules.text import sst2_files
from src.datamodules.text.data import TokenData
from src.datamodules.text.vocabulary import Vocabulary
from src.errors import UserError
from src.gpu import kernel_archive
from src.measure import cpu_peaks
from src.models.distilbert import convert, weights
from src.models.distilbert.network import DistilBert, Sizes
from src.models.se3_transformer.checkpoint import read_tensors
from src.pretrained.reading import read_state
from src.pretrained.weights import INDEX
from src.system.reading import read_npy
from tests.support.click_rows import click_rows
from tests.support.sst2_rows import PIECES

SIZES = Sizes(vocab_size=17, max_position_embeddings=8, dim=4, n_layers=1, n_heads=2, hidden_dim=6)
TSV = b'sentence\tlabel\na fine film \t1\n"boring \t0\n'
PEAKS = b'{"a CPU, float32": [1e11, 2e10], "another": [1, 2]}'
HOME = TemporaryDirectory()


@cache
def network() -> DistilBert:
    return DistilBert(SIZES)


def model_folder(path: Path, name: str) -> Path:
    """Returns a folder with the file at `path` as `name`, and the other files of a model."""
    folder = path.parent / "model"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / weights.CONFIG).write_bytes(configs()[0])
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    if not name.endswith((".bin", ".safetensors")):
        (folder / weights.FILES[0]).write_bytes(saved_tensors()[0])
    path.replace(folder / name)
    return folder


def export_index(path: Path) -> None:
    folder = path.parent / "export"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "model-1.safetensors").write_bytes(save({"a": torch.zeros(1)}))
    path.replace(folder / INDEX)
    read_state(folder)


def loaded(folder: Path) -> None:
    net = DistilBert(weights.read_sizes(str(folder)))
    weights.load(net, str(folder))


def weights_bin(path: Path) -> None:
    loaded(model_folder(path, weights.FILES[1]))


def weights_safe(path: Path) -> None:
    read_tensors(path)
    loaded(model_folder(path, weights.FILES[0]))


def weights_config(path: Path) -> None:
    loaded(model_folder(path, weights.CONFIG))


def bert_config(path: Path) -> None:
    folder = model_folder(path, weights.CONFIG)
    (folder / weights.FILES[0]).write_bytes(bert_tensors())
    convert.convert(str(folder), folder / "converted")


def sst2_tsv(path: Path) -> None:
    sentences, labels = sst2_files.read_tsv(path, labelled=True)
    assert len(sentences) == len(labels) and set(labels.tolist()) <= {0, 1}


def sst2_zip(path: Path) -> None:
    sums = {split: "" for split in sst2_files.SPLITS}
    for split in sums:
        path.with_name(f"{split}.tsv").unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sst2_files, "SHA256", sums)
        sst2_files.glue_files(path.parent)


def qm9_edge(path: Path) -> None:
    entries = qm9_dgl.entries_of(path)
    parsed = parse_chunk(qm9_dgl.parse, entries.contents[:6])
    assert np.isfinite(parsed.arrays.positions).all()


def image(path: Path) -> None:
    result = verdict(path, Rendering(), is_decoded=True)
    range_note([path], Rendering())
    if result.problem is not None:
        raise UserError(result.problem)
    for draws in None, np.full(NUM_DRAWS, 0.3):
        assert load(path, 8, draws).shape == (8, 8, 3)


def held_out(path: Path) -> None:
    rows = read_split(path, 50)
    assert (np.diff(rows) > 0).all() and ((rows >= 0) & (rows < 50)).all()


def vocabulary(path: Path) -> None:
    words = Vocabulary(str(path))
    words.encode(["a good film"], "a test")


def tokens(path: Path) -> None:
    data = TokenData.load(path)
    assert len(data) == 3


def npy(path: Path) -> None:
    whole, mapped = read_npy(path), read_npy(path, mapped=True)
    assert whole.shape == mapped.shape and whole.dtype == mapped.dtype and whole.nbytes < 10**6


def checked_stamp(path: Path) -> None:
    folder, splits = clicks_folder()
    path.replace(folder / STAMP)
    (folder / SUMS).write_bytes(noted()[SUMS])
    expect_checked(folder, splits)


def checked_sums(path: Path) -> None:
    folder, splits = clicks_folder()
    path.replace(folder / SUMS)
    (folder / STAMP).write_bytes(noted()[STAMP])
    assert expect_checked(folder, splits) == ((folder / SUMS).read_bytes() == noted()[SUMS])


def peaks(path: Path) -> None:
    assert all(0 < peak < float("inf") for both in cpu_peaks.read(path).values() for peak in both)


@cache
def clicks_folder() -> tuple[Path, Mapping[str, SplitBinary]]:
    """Returns a folder of clicks that was checked, with what the check noted as it was."""
    folder, rows = Path(HOME.name) / "clicks", click_rows(20)
    for split in "train", "test":
        rows.write(folder, split)
    splits = {"train": SplitBinary(folder, rows.spec, "train")}
    check_values(folder, splits)
    return folder, splits


@cache
def noted() -> dict[str, bytes]:
    folder, _ = clicks_folder()
    return {name: (folder / name).read_bytes() for name in (STAMP, SUMS)}


def saved(*contents: Any, **options: Any) -> list[bytes]:
    """Returns what torch.save writes of each of the contents."""
    files = []
    for content in contents:
        buffer = io.BytesIO()
        torch.save(content, buffer, **options)
        files.append(buffer.getvalue())
    return files


def state() -> dict[str, torch.Tensor]:
    return {name: value.contiguous() for name, value in network().state_dict().items()}


def pickled() -> list[bytes]:
    """Returns weights in both formats of torch, and values that are no weights."""
    first = next(iter(state()))
    others = [[1, 2], "text", {3: torch.ones(2)}, {"x": 1}, {"x": torch.ones(1).expand(10**12)}]
    others += [{**state(), first: value} for value in (
        torch.eye(3).to_sparse(), torch.ones(17, 4, dtype=torch.complex64), torch.ones(17, 4, dtype=torch.int8),
        torch.ones(17, 4, device="meta"), quantised(),
    )]  # fmt: skip
    return (
        saved(state(), *others) + saved(state(), _use_new_zipfile_serialization=False) + [b"text", zipped("deflated")]
    )


def quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch will cease to write such tensors, and files have them still
        return torch.quantize_per_tensor(torch.ones(17, 4), 1.0, 0, torch.qint8)


def saved_tensors() -> list[bytes]:
    whole = save(state())
    claims = json.dumps({"x": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    return [whole, save({}), len(claims).to_bytes(8, "little") + claims, b"\xff" * 7 + b"\x7f{}"]


def configs() -> list[bytes]:
    sizes = convert.config_of(SIZES)
    return [json.dumps(sizes | change).encode() for change in ({}, {"n_layers": 10**6}, {"dim": 10**9, "n_heads": 1})]


def bert_configs() -> list[bytes]:
    sizes = {theirs: getattr(SIZES, ours) for ours, theirs in convert.SIZES.items()} | {"model_type": "bert"}
    return [
        json.dumps(sizes | change).encode() for change in ({}, {"num_hidden_layers": 10**6}, {"hidden_act": "gelu"})
    ]


@cache
def bert_tensors() -> bytes:
    """Returns the weights of a BERT of these sizes."""
    ours = {name.removeprefix(weights.ENCODER): value for name, value in state().items() if weights.ENCODER in name}
    theirs = {"embeddings.token_type_embeddings.weight": torch.zeros(2, SIZES.dim)}
    for name, value in ours.items():
        layer = name.removeprefix("transformer.layer.0.")
        module, _, part = layer.rpartition(".")
        is_layer = layer != name
        theirs[f"encoder.layer.0.{convert.LAYER[module]}.{part}" if is_layer else name] = value
    return save(theirs)


def zipped(kind: str) -> bytes:
    """Returns an archive of SST-2's members: stored, deflated, with other compressions, encrypted, or far too large."""
    method = {"stored": zipfile.ZIP_STORED, "bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method.get(kind, zipfile.ZIP_DEFLATED)) as archive:
        for split in sst2_files.SPLITS:
            archive.writestr(f"SST-2/{split}.tsv", TSV)
    data = bytearray(buffer.getvalue())
    entry, member = data.find(b"PK\1\2"), 0
    if kind == "encrypted":
        data[entry + 8] |= 1
        data[member + 6] |= 1
    if kind == "claims":
        data[entry + 24 : entry + 28] = (2**32 - 2).to_bytes(4, "little")
    return bytes(data)


def zips() -> list[bytes]:
    return [zipped(kind) for kind in ("stored", "deflated", "bzip2", "lzma", "encrypted", "claims")]


def npzs(**arrays: np.ndarray) -> list[bytes]:
    """Returns a .npz of the arrays, plain and compressed, and with headers of arrays that it does not have."""
    files = []
    for write in np.savez, np.savez_compressed:
        buffer = io.BytesIO()
        write(buffer, **arrays)  # pyright: ignore[reportArgumentType]
        files.append(buffer.getvalue())
    name, first = next(iter(arrays.items()))
    for kind in first.astype(object), first.astype("U3"), np.zeros((0, 10**12), np.uint8), first.astype(float):
        buffer = io.BytesIO()
        np.savez(buffer, **arrays | {name: kind})  # pyright: ignore[reportArgumentType]
        files.append(buffer.getvalue())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"{name}.npy", header((10**12,)))
    return [*files, buffer.getvalue()]


def header(shape: tuple[int, ...]) -> bytes:
    """Returns the header of a .npy file, without the array."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def npys() -> list[bytes]:
    files = [header((10**12,)), header((2**31, 2**31)), header((-1,)), header(()) + bytes(8)]
    for array in np.arange(12).reshape(3, 4), np.asfortranarray(np.ones((2, 3))), np.array([None, {}], object):
        buffer = io.BytesIO()
        np.save(buffer, array)
        files.append(buffer.getvalue())
    return files


def molecules() -> list[bytes]:
    """Returns water and methane as DGL has them."""
    atoms, bonds = [3, 5], [[(0, 1), (0, 2)], [(0, 1), (0, 2), (0, 3), (0, 4)]]
    both = [pair for pairs in bonds for a, b in pairs for pair in ((a, b), (b, a))]
    kinds = [3, 0, 0, 1, 0, 0, 0, 0]  # O H H, C H H H H in H, C, N, O, F
    directed = np.array(both, np.int32)
    return npzs(
        n_node=np.array(atoms), n_edge=np.array([4, 8]), node_attr=np.eye(11)[kinds],
        node_pos=np.random.default_rng(0).normal(size=(8, 3)), edge_attr=np.eye(4)[[0] * 12], src=directed[:, 0],
        dst=directed[:, 1], targets=np.ones((2, 19), np.float32),
    )  # fmt: skip


def images() -> list[bytes]:
    """Returns small images of every format, and a JPEG and a PNG that claim to have thousands of millions of pixels."""
    files = [picture(kind, 20, 30) for kind in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")]
    jpeg, png = bytearray(files[0]), bytearray(files[1])
    frame = jpeg.find(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = b"\xff\xdc" * 2
    png[16:24] = b"\0\0\xff\xff" * 2
    return [*files, bytes(jpeg), bytes(png), picture("JPEG", 20, 30, "CMYK")]


def picture(kind: str, height: int, width: int, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def packed(archives: list[bytes]) -> list[bytes]:
    return [pack(archives[0]) for pack in (gzip.compress, bz2.compress, lzma.compress)]


def words() -> list[bytes]:
    return ["\n".join(PIECES).encode(), "\r\n".join((*PIECES, "")).encode()]


def kernels(path: Path) -> None:
    pytest.importorskip("triton")
    with TemporaryDirectory() as cache, patch.object(kernel_archive, "cache", lambda: Path(cache)):
        kernel_archive.unpack(path)


def kernel_archives() -> list[bytes]:
    with TemporaryDirectory() as folder, patch.object(kernel_archive, "cache", lambda: Path(folder)):
        home = Path(folder) / "ONE"
        home.mkdir()
        (home / "add.cubin").write_bytes(b"code")
        (home / "__grp__add.json").write_text(json.dumps({"child_paths": {"add.cubin": f"{home}/add.cubin"}}))
        kernel_archive.pack(path := Path(folder) / "kernels.zip")
        return [path.read_bytes()]


Reader = tuple[Callable[[Path], None], str, Callable[[], list[bytes]]]
READERS: dict[str, Reader] = {
    "sst2.tsv": (sst2_tsv, "train.tsv", lambda: [TSV]),
    "sst2.zip": (sst2_zip, "SST-2.zip", zips),
    "weights.bin": (weights_bin, "new.bin", pickled),
    "weights.safetensors": (weights_safe, "new.safetensors", saved_tensors),
    "export": (export_index, "new.json", lambda: [b'{"weight_map": {"a": "model-1.safetensors"}}']),
    "weights.config": (weights_config, "new.json", configs),
    "bert.config": (bert_config, "new.json", bert_configs),
    "qm9_edge": (qm9_edge, "qm9_edge.npz", molecules),
    "tokens": (tokens, "dev.npz", lambda: npzs(ids=np.arange(5), starts=np.array([0, 5]), labels=np.array([1]))),
    "npy": (npy, "a.npy", npys),
    "image": (image, "a.jpg", images),
    "held_out": (held_out, "split.json", lambda: [b"[1, 5, 7, 50]", b"[" * 200_000]),
    "vocabulary": (vocabulary, "vocab.txt", words),
    "checked.json": (checked_stamp, "new.json", lambda: [noted()[STAMP]]),
    "checked.bin": (checked_sums, "new.bin", lambda: [noted()[SUMS]]),
    "kernels.zip": (kernels, "kernels.zip", kernel_archives),
    "cpu_peaks": (peaks, "peaks.json", lambda: [PEAKS]),
}
