"""A run knows the code it was made of, with git and without."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from src.errors import UserError
from src.measure.sources import FILE, MEASURING, code_of_commit, code_of_tree, digest, sources
from tests.support import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of one commit with code and a file that is none."""
    root = tmp_path / "tree"
    for name in ("src/some/code.py", "conf/train.yaml", "train.py", "benchmarks/peer.py", "README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{name}\n")
    for words in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -qm one"):
        subprocess.run(["git", "-C", str(root), *words.split()], check=True)
    return root


def test_a_tree_with_git(tree: Path) -> None:
    commit = subprocess.run(
        ["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    clean = sources(tree)
    assert clean == {"commit": commit, "dirty": False, "digest": digest(code_of_commit(tree, commit))}
    (tree / "src/some/__pycache__").mkdir()
    (tree / "src/some/__pycache__/code.pyc").write_text("compiled")
    (tree / ".gitignore").write_text("__pycache__/\n")
    assert sources(tree) == clean | {"dirty": True}  # the new file is no code
    (tree / "src/some/more.py").write_text("")
    assert sources(tree)["digest"] != clean["digest"]


def test_a_tree_over_another_commit(tree: Path) -> None:
    """As on a machine that has an older clone: the file beside the tree says which commit it is."""
    older = sources(tree)
    (tree / "src/some/code.py").write_text("newer")
    newer = {"commit": "1" * 40, "dirty": False, "digest": digest(code_of_tree(tree))}
    assert sources(tree) == newer | {"commit": older["commit"], "dirty": True}
    (tree / FILE).write_text(json.dumps(newer | {"measuring": ""}))
    assert sources(tree) == newer
    (tree / "src/some/code.py").write_text("newest")
    assert sources(tree)["commit"] == older["commit"] and sources(tree)["dirty"] is True


def test_a_tree_in_a_folder_of_another_repository(tree: Path) -> None:
    """Its commit is not that one's, even where that one ignores the folder."""
    inner = tree / "ignored" / "tree"
    (tree / ".gitignore").write_text("/ignored/\n")
    shutil.copytree(tree, inner, ignore=shutil.ignore_patterns(".git", "ignored"))
    unknown = {"commit": None, "dirty": None, "digest": digest(code_of_tree(inner))}
    assert sources(inner) == unknown
    named = unknown | {"commit": "1" * 40, "dirty": False}
    (inner / FILE).write_text(json.dumps(named | {"measuring": ""}))
    assert sources(inner) == named


def test_a_tree_without_git(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, measuring = sources(tree), sources(tree, MEASURING)
    assert measuring["digest"] == digest(code_of_commit(tree, clean["commit"], MEASURING)) != clean["digest"]
    shutil.rmtree(tree / ".git")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tree.parent))
    assert sources(tree) == {"commit": None, "dirty": None, "digest": clean["digest"]}
    (tree / FILE).write_text(json.dumps(clean | {"measuring": measuring["digest"]}))
    assert sources(tree) == clean and sources(tree, MEASURING) == measuring
    (tree / "README.md").write_text("another text")
    assert sources(tree) == clean
    (tree / "benchmarks/peer.py").write_text("another peer")
    assert sources(tree) == clean and sources(tree, MEASURING)["dirty"] is True
    (tree / "conf/train.yaml").write_text("another value")
    assert sources(tree) == {"commit": clean["commit"], "dirty": True, "digest": digest(code_of_tree(tree))}
    (tree / FILE).write_text("[]")
    with pytest.raises(UserError, match=r"\.sources\.json: not what"):
        sources(tree)


def test_committed_records_are_of_the_code_of_their_commit() -> None:
    """Older records have no digest."""
    shallow = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=True
    ).stdout.strip()
    compared = 0
    for path in (ROOT / "docs/results").rglob("*.json"):
        content = json.loads(path.read_text())
        further = MEASURING if "sides" in content else ()  # a comparison in one run
        if "digest" in (git := (content if further else content.get("environment", {})).get("git") or {}):
            compared += 1
            assert git["dirty"] is False, path
            assert shallow == "true" or git["digest"] == digest(code_of_commit(ROOT, git["commit"], further)), path
    assert compared > 100
