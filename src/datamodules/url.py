"""Downloads a URL to a file, with retries, where an earlier attempt ended."""

import http.client
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from src.errors import UserError
from src.printable import printable
from src.system.progress import byte_progress

TIMEOUT_S = 60.0  # without a byte
PAUSES_S = 1.0, 5.0  # before the second and the third attempt
BLOCK = 1 << 20
BUSY = 408, 429  # asked for later
FAILURES = OSError, http.client.HTTPException  # urllib.error.URLError is an OSError


def download(url: str, part: Path) -> None:
    """Downloads `url` to `part`, from its end on if it exists and the server supports ranges.

    A connection that stalls for TIMEOUT_S or breaks, and a server that is busy, are tried again after PAUSES_S. Raises
    UserError for what cannot be had; `part` stays.
    """
    for pause_s in (*PAUSES_S, None):
        try:
            return _fetch(url, part)
        except FAILURES as error:
            reason = " ".join(printable(str(getattr(error, "reason", None) or error or type(error).__name__)).split())
            if pause_s is None or not _may_pass(error):
                again = "run again to resume it" if part.exists() else "run again"
                raise UserError(
                    f"cannot download {url} ({reason}): {again}, or give a folder with {part.stem}"
                ) from error
        print(f"{url}: {reason}; trying again in {pause_s:g} s", file=sys.stderr)
        time.sleep(pause_s)


def _may_pass(error: Exception) -> bool:
    """Returns whether another attempt can help."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in BUSY or error.code >= 500
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    broken = isinstance(reason, TimeoutError | ConnectionError | http.client.HTTPException)
    return broken and not isinstance(reason, ConnectionRefusedError)


def _fetch(url: str, part: Path) -> None:
    """Downloads what is missing in `part`. Raises FAILURES of the connection; UserError if `part` cannot be written."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        # 416: the server has no bytes after this offset, so the file is complete; its checksum is verified next.
        if error.code == 416 and done:
            return
        raise
    with response, byte_progress() as progress:
        # A server may answer with the whole file, or with another part than was asked for.
        span = response.headers.get("Content-Range") or "an unnamed part"
        continues = response.status == 206 and span.startswith(f"bytes {done}-")
        if response.status == 206 and not continues:
            part.unlink(missing_ok=True)
            raise ConnectionError(f"the server sent {span}, not bytes {done}-")
        done = done if continues else 0
        total = None if response.length is None else done + response.length
        bar = progress.add_task(Path(url).name, total=total, completed=done)
        with writing(part):
            file = part.open("ab" if done else "wb")
        with file:
            while block := response.read(BLOCK):
                with writing(part):
                    file.write(block)
                done += len(block)
                progress.update(bar, completed=done)
            with writing(part):
                file.flush()
                os.fsync(file.fileno())
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises UserError where the disk fails, which is not to be taken for the connection."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}): make room, or give another data_root") from error
