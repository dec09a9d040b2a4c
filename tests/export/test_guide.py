"""The commands and scripts of docs/guides/export.md run, each section on a checkpoint of its model."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import jaxtyping
import pytest

from src.config.dashes import as_keys
from src.export.run import export
from tests.support import ROOT
from tests.support.composing import composed

pytestmark = pytest.mark.slow
PAGE = (ROOT / "docs" / "guides" / "export.md").read_text(encoding="utf-8")
SECTIONS = {
    title: text for title, text in re.findall(r"^#+ ([^\n]*)\n(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
NEEDED = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "hf": ("timm",)}


@pytest.mark.parametrize(
    ("title", "model"),
    [
        ("DistilBERT", "distilbert"),
        ("MobileNetV1", "mobilenet_v1 as timm's"),
        ("DLRM", "dlrm"),
        ("MoFlow and the SE(3)-Transformer", "moflow"),
    ],
)
def test_a_section_runs(
    title: str, model: str, checkpoint_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [
        "".join(line[4:] for line in block.splitlines(keepends=True))
        for block in re.findall(r"(?:^    .*\n)+", SECTIONS[title], re.MULTILINE)
    ]
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("python export.py ")]
    scripts = [block for block in blocks if not block.startswith("python ")]
    assert commands
    for command in commands:
        words = as_keys(shlex.split(command.replace("RUN/checkpoints/best.ckpt", "CHECKPOINT"))[2:], ["to"])
        for to, packages in NEEDED.items():
            for package in packages if f"to={to}" in words and model != "distilbert" else ():
                pytest.importorskip(package)
        monkeypatch.chdir(tmp_path)
        jaxtyping.config.update("jaxtyping_disable", True)  # while torch.export traces, a size is no int
        try:
            export(composed("export", *(word.replace("CHECKPOINT", str(checkpoint_of(model))) for word in words)))
        finally:
            jaxtyping.config.update("jaxtyping_disable", False)
    for script in scripts:
        exec(compile(script, title, "exec"), {})
