"""Version and place of this code: a checkout, or the installed library with entry points and conf/ in a folder."""

from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1]  # src, which an installed library calls reprise
PACKAGE = __name__.partition(".")[0]
IS_INSTALLED = PACKAGE != "src"
ROOT = SOURCES / "scripts" if IS_INSTALLED else SOURCES.parent
CONF = ROOT / "conf"
VERSION = "0.1.0"  # as in pyproject.toml
