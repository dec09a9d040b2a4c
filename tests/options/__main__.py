"""Tries every option and writes what came of it: `python -m tests.options PART=1/3 OUT=folder`.

PART=k/n takes the k-th of n parts of about the same length. ONLY=pattern takes the cases of such names, DEVICE=cpu the
smallest networks. AT_ONCE=6 processes share the GPU, SECONDS=570 is when it ends. LIST=1 prints the cases. GPUS=2 takes
the cases of two GPUs, which are left out otherwise, REST=1 those that the page lacks or has as failed.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.options import page, run

SETTINGS = {"PART": "1/1", "OUT": "options", "ONLY": "*", "DEVICE": "", "AT_ONCE": "6", "SECONDS": "570", "LIST": "",
            "GPUS": "1", "REST": "", "KEEP": "", "FORK": "1"}  # fmt: skip


def main(arguments: list[str]) -> int:
    begin_s = time.monotonic()
    values = dict(text.split("=", 1) for text in arguments)
    if unknown := values.keys() - SETTINGS.keys():
        print(f"error: {', '.join(unknown)}: give some of {', '.join(SETTINGS)}", file=sys.stderr)
        return 2
    settings = SETTINGS | {name: os.environ[name] for name in ("PART", "OUT", "ONLY") if name in os.environ} | values
    run.import_all()
    from tests.options import trying

    done = page.tried() if settings["REST"] else ()
    device = settings["DEVICE"] or trying.device_here()
    chosen = trying.part_of(trying.all_cases(device, int(settings["GPUS"])), settings["PART"], settings["ONLY"], done)
    if settings["LIST"]:
        print("\n".join(case.name for case in chosen))
        return 0
    out = Path(settings["OUT"])
    out.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="options_"))
    try:
        forks = settings["FORK"] == "1" and run.can_fork(home)
        if not forks:
            print("a forked process cannot use the GPU here: each command starts Python anew, which takes 10 s")
        end_s = begin_s + float(settings["SECONDS"])
        trial = trying.Trial(home, device, end_s, int(settings["AT_ONCE"]), forks, bool(settings["KEEP"]))
        trial.save = lambda verdicts: trying.save(verdicts, out, settings["PART"], device, time.monotonic() - begin_s)
        verdicts = trial.run(chosen)
    finally:
        if not settings["KEEP"]:
            shutil.rmtree(home, ignore_errors=True)
    return trying.write(verdicts, out, settings["PART"], device, time.monotonic() - begin_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
