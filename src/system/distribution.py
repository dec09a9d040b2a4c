"""The distribution `se3-transformer`: `src.dropin` as the package `se3_transformer`, with what it imports of `src`.

The rest of `src` that it needs is in `se3_transformer/reprise`. What these modules import is read from their source, so
that a new import is not forgotten. Packages on the way to a module are empty, because theirs import more.
"""

import ast
import base64
import hashlib
import re
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

NAME = "se3-transformer"
NEEDED = "torch", "e3nn", "jaxtyping"
KERNELS = "contraction", "edge_networks", "edges", "norm", "two_degrees"  # which `package` imports
BY_NAME = [*(f"src/models/se3_transformer/fast/{name}.py" for name in KERNELS), "src/gpu/layer_norm_triton.py"]
WHEEL = "Wheel-Version: 1.0\nGenerator: reprise\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
SUMMARY = "NVIDIA's SE(3)-Transformer in plain torch, without DGL, for RFdiffusion and the RoseTTAFolds"


def contents(root: Path) -> tuple[str, str, dict[str, bytes]]:
    """Returns the wheel's name, its folder of metadata, and the content of each file but RECORD by its path."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    content = {place_of(path): renamed((root / path).read_text("utf-8")).encode() for path in modules(root)}
    for place in list(content):
        for folder in list(Path(place).parents)[:-1]:
            content.setdefault(f"{folder.as_posix()}/__init__.py", b"")
    stem = f"{NAME.replace('-', '_')}-{project['version']}"
    info = f"{stem}.dist-info"
    needed = [line for line in project["dependencies"] if re.match(r"[\w-]+", line)[0] in NEEDED]  # type: ignore[index]
    metadata = ["Metadata-Version: 2.4", f"Name: {NAME}", f"Version: {project['version']}", f"Summary: {SUMMARY}"]
    metadata += [f"License-Expression: {project['license']}", "License-File: LICENSE"]
    metadata += [f"Requires-Python: {project['requires-python']}", *(f"Requires-Dist: {line}" for line in needed), ""]
    content |= {f"{info}/METADATA": "\n".join(metadata).encode(), f"{info}/WHEEL": WHEEL.encode()}
    content[f"{info}/licenses/LICENSE"] = (root / "LICENSE").read_bytes()
    return f"{stem}-py3-none-any.whl", info, content


def write(wheel: Path, info: str, files: dict[str, bytes]) -> None:
    """Writes a wheel of these files, with the digests of all in its RECORD."""
    digests = {path: base64.urlsafe_b64encode(hashlib.sha256(content).digest()) for path, content in files.items()}
    lines = [f"{path},sha256={digests[path].decode().rstrip('=')},{len(files[path])}" for path in files]
    files = {**files, f"{info}/RECORD": "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)


def modules(root: Path) -> list[str]:
    """Returns the paths of the modules: those of `src.dropin` and what they import, directly or not."""
    new = {path.relative_to(root).as_posix() for path in (root / "src/dropin").rglob("*.py")} | set(BY_NAME)
    seen: set[str] = set()
    while new:
        seen |= new
        new = {other for path in new for other in imported(root, path)} - seen
    return sorted(seen)


def imported(root: Path, path: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((root / path).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "src":
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                module = next(m for m in (name, node.module) if m and file_of(root, m))
                yield file_of(root, module)  # type: ignore[misc]


def file_of(root: Path, module: str) -> str | None:
    """Returns the path of a module or package, None if it is neither."""
    base = module.replace(".", "/")
    return next((path for path in (f"{base}.py", f"{base}/__init__.py") if (root / path).is_file()), None)


def place_of(path: str) -> str:
    """Returns a module's path in the wheel."""
    if path.startswith("src/dropin/"):
        return path.replace("src/dropin", "se3_transformer", 1)
    return path.replace("src", "se3_transformer/reprise", 1)


def renamed(text: str) -> str:
    """Returns the text of a module with the names that it imports by there."""
    text = re.sub(r"\bsrc\.dropin\b", "se3_transformer", text)
    return re.sub(r"\bsrc(?=\.(?:models|gpu|batches|errors|printable)\b)", "se3_transformer.reprise", text)
