"""GLUE's files: reading, downloading, and errors with file and line."""

import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest

from src.batches.tokens import UNLABELLED
from src.datamodules.download import sha256_of
from src.datamodules.text import sst2_files
from src.datamodules.text.sst2_files import glue_files, own_files, read_tsv
from src.errors import UserError
from tests.support.sst2_rows import labels, sentences, write_files, write_lines


def test_sentences_and_labels_are_read(tmp_path: Path) -> None:
    write_files(tmp_path)
    texts, targets = read_tsv(tmp_path / "dev.tsv", labelled=True)
    assert [text.rstrip() for text in texts] == sentences(11, 1)
    assert targets.tolist() == labels(11)
    texts, targets = read_tsv(tmp_path / "test.tsv", labelled=False)
    assert texts == sentences(5, 2)
    assert targets.tolist() == [UNLABELLED] * 5


def test_quotation_marks_and_unicode_line_ends_are_text(tmp_path: Path) -> None:
    path = tmp_path / "some.tsv"
    path.write_bytes('\ufefflabel\tsentence\r\n1\t" a \x85 film\r\n0\tbad'.encode())
    texts, targets = read_tsv(path, labelled=True)
    assert texts == ['" a \x85 film', "bad"]
    assert (targets.dtype, targets.tolist()) == (np.int64, [1, 0])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["text\tlabel", "good\t1"], "line 1: there is no column 'sentence', only 'text', 'label'"),
        (["good\t1", "bad\t0"], "line 1: there is no column 'sentence', only 'good', '1'"),
        (["sentence", "good"], "line 1: there is no column 'label', only 'sentence'"),
        (["sentence\tlabel", "good\t1", "bad 0"], "line 3 has 1 columns, the header 2"),
        (["sentence\tlabel", "good\t1", "", "bad\t0"], "line 3 has 1 columns, the header 2"),
        (["sentence\tlabel", "good\t1", "bad\t-1"], "line 3: the label is '-1'; it must be 0 or 1"),
        (["sentence\tlabel", "good\t"], "line 2: the label is ''; it must be 0 or 1"),
    ],
)
def test_a_bad_line_is_named(lines: list[str], words: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "train.tsv", *lines)
    with pytest.raises(UserError) as raised:
        read_tsv(tmp_path / "train.tsv", labelled=True)
    assert str(raised.value).startswith(f"{tmp_path / 'train.tsv'} {words}")


def test_a_line_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_bytes("sentence\tlabel\ngood\t1\ncliché\t0\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"train.tsv line 3 is not UTF-8 \(byte 0xe9\): save the file as UTF-8"):
        read_tsv(path, labelled=True)
    path.write_text("sentence\tlabel\ngood\t1\n", encoding="utf-16")
    with pytest.raises(UserError, match=r"train.tsv line 1 is not UTF-8"):
        read_tsv(path, labelled=True)


def test_only_the_test_split_of_own_files_is_optional(tmp_path: Path) -> None:
    write_files(tmp_path)
    assert list(own_files(tmp_path)) == ["train", "dev", "test"]
    (tmp_path / "test.tsv").unlink()
    assert list(own_files(tmp_path)) == ["train", "dev"]
    (tmp_path / "dev.tsv").unlink()
    with pytest.raises(UserError, match=f"datamodule.raw={tmp_path} has no dev.tsv: give a folder"):
        own_files(tmp_path)


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an archive like GLUE's, whose checksums are patched in."""
    origin, folder = write_files(tmp_path / "origin"), tmp_path / "data"
    folder.mkdir()
    with zipfile.ZipFile(folder / "SST-2.zip", "w") as archive:
        for split in sst2_files.SPLITS:
            archive.write(origin / f"{split}.tsv", f"SST-2/{split}.tsv")
            monkeypatch.setitem(sst2_files.SHA256, split, sha256_of(origin / f"{split}.tsv"))
    return folder


def test_the_archive_is_unpacked_and_verified(fetched: Path) -> None:
    paths = glue_files(fetched)
    assert read_tsv(paths["dev"], labelled=True)[1].tolist() == labels(11)
    assert glue_files(fetched) == paths
    write_lines(paths["dev"], "sentence\tlabel")
    with pytest.raises(UserError, match=r"dev.tsv is not GLUE's file: delete it, or give .* datamodule.raw=FOLDER"):
        glue_files(fetched)


def test_a_damaged_archive_is_refused_and_leaves_no_file(fetched: Path) -> None:
    archive = fetched / "SST-2.zip"
    whole = archive.read_bytes()
    for damaged in (whole[:-100], whole.replace(b"good", b"gxxd")):
        archive.write_bytes(damaged)
        with pytest.raises(UserError, match=r"SST-2.zip is truncated or altered .*: delete it to download it again"):
            glue_files(fetched)
        assert [path.name for path in fetched.iterdir()] == ["SST-2.zip"]


def test_an_archive_without_an_expected_file_is_refused(fetched: Path) -> None:
    with zipfile.ZipFile(fetched / "SST-2.zip", "w") as archive:
        archive.writestr("SST-2/other.tsv", "")
    with pytest.raises(UserError, match=r"SST-2.zip is truncated or altered"):
        glue_files(fetched)


def test_the_error_of_an_unreachable_url_asks_for_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # unused once the server is closed
    monkeypatch.setattr(sst2_files, "URL", f"http://127.0.0.1:{port}/SST-2.zip")
    with pytest.raises(UserError, match=r"^cannot download .*, or give train.tsv and dev.tsv as datamodule.raw=FOLD"):
        glue_files(tmp_path)
