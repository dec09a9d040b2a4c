"""The log file of a run, which conf/hydra/job_logging names."""

import io
import logging
from pathlib import Path

from src.system.files import open_to_append


class RunLog(logging.FileHandler):
    """Appends to a regular file. Raises UserError where it cannot."""

    def _open(self) -> io.TextIOWrapper:
        return open(open_to_append(Path(self.baseFilename)), "a", encoding="utf-8")
