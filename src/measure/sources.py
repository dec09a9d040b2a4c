"""Identifies the code of a run: its commit, whether it differs from that commit, and a digest of its files.

A machine without git, with another commit, or with the tree in a folder of another repository, reads `FILE`, which
`python -m src.measure.sources` writes where git is and which travels with the tree. There the code counts as changed if
its digest is another than the file's.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha1, sha256
from pathlib import Path
from typing import Any

from src.errors import UserError
from src.system.home import IS_INSTALLED, ROOT

CODE = ("conf", "hydra_plugins", "predict.py", "prepare.py", "src", "train.py")  # what a figure depends on
MEASURING = ("benchmarks",)  # what a comparison in one run depends on besides
FILE = ".sources.json"


def sources(root: Path = ROOT, further: Sequence[str] = ()) -> dict[str, Any]:
    """Returns `commit`, `dirty` (whether any file differs from it) and `digest`; None for what cannot be known.

    The digest is of CODE, and of `further`: nothing or MEASURING.
    """
    if IS_INSTALLED and root == ROOT:  # as the wheel was built
        named = read(root / FILE) or {}
        return {key: named.get(key) for key in ("commit", "dirty", "digest")}
    code_digest, key = digest(code_of_tree(root, further)), "measuring" if further else "digest"
    named = read(root / FILE)
    is_named = bool(named and not named["dirty"] and named[key] == code_digest)
    try:
        is_repository = Path(git(root, "rev-parse", "--show-toplevel").rstrip("\n")).samefile(root)
        commit, changes = git(root, "rev-parse", "HEAD"), git(root, "status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        is_repository, commit, changes = False, "", ""
    if not is_repository:
        dirty = not is_named if named else None
        return {"commit": named["commit"] if named else None, "dirty": dirty, "digest": code_digest}
    if changes and named and is_named:  # a copy of the tree over another commit
        return {"commit": named["commit"], "dirty": False, "digest": code_digest}
    return {"commit": commit.strip(), "dirty": bool(changes), "digest": code_digest}


def digest(blobs: dict[str, str]) -> str:
    """Returns one number for files and their git blobs, which does not depend on their order."""
    return sha256("".join(f"{path} {blobs[path]}\n" for path in sorted(blobs)).encode()).hexdigest()[:16]


def code_of_tree(root: Path, further: Sequence[str] = ()) -> dict[str, str]:
    """Returns the git blob of each file of code, by its path."""
    names = (*CODE, *further)
    files = [path for name in names for path in ((root / name).rglob("*") if (root / name).is_dir() else [root / name])]
    kept = [path for path in files if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(root).as_posix(): blob(path.read_bytes()) for path in kept}


def code_of_commit(root: Path, commit: str, further: Sequence[str] = ()) -> dict[str, str]:
    """Returns the same of a commit. Raises CalledProcessError where git does not know it."""
    lines = git(root, "ls-tree", "-r", "-z", commit, "--", *CODE, *further).split("\0")
    return {path: words.split()[2] for words, _, path in (line.partition("\t") for line in lines if line)}


def blob(content: bytes) -> str:
    """Returns git's name of a file's content."""
    return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def git(root: Path, *words: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(root), *words]  # a killed `git status` would leave its lock
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def read(path: Path) -> dict[str, Any] | None:
    """Returns the content of `FILE`; None without one. Raises UserError for one that is damaged."""
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {key: content[key] for key in ("commit", "dirty", "digest", "measuring")}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path}: not what `python -m src.measure.sources` writes; remove it, and write it again if you need it"
        ) from None


def main() -> None:
    """Writes `FILE` for a machine without git."""
    state = sources() | {"measuring": sources(further=MEASURING)["digest"]}
    (ROOT / FILE).write_text(json.dumps(state) + "\n", encoding="utf-8")
    changed = ", with uncommitted changes" if state["dirty"] else ""
    print(f"wrote {FILE}: commit {state['commit']}{changed}, digest {state['digest']}")


if __name__ == "__main__":
    sys.exit(main())
