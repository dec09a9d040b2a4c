"""The entry points of the installed library: `reprise train ...` is `python train.py ...` of a checkout."""

import runpy
import sys

from src.system.home import ROOT


def main() -> None:
    """Runs the entry point that the first argument names, with the others."""
    names = sorted(path.stem for path in ROOT.glob("*.py") if path.stem in NAMES)
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in names:
        print(f"error: reprise {name}: expected one of {', '.join(names)}, and its arguments", file=sys.stderr)
        sys.exit(2)
    del sys.argv[1]
    if not sys.flags.safe_path:
        sys.path[0] = str(ROOT)  # as of a script, not the current folder
    runpy.run_path(str(ROOT / f"{name}.py"), run_name="__main__")


NAMES = ("train", "predict", "prepare", "report", "export")

if __name__ == "__main__":
    main()
