"""Downloads from servers that stall, break off, lie and refuse: the file comes whole, or one line and no file."""

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from src.datamodules import url
from src.datamodules.download import from_url
from src.errors import UserError

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SIZE, HALF = len(CONTENT), len(CONTENT) // 2
Answer = Callable[[socket.socket, int], None]  # gets the connection and the offset that was asked for


def answer(status: str = "200 OK", body: bytes = CONTENT, length: int | str | None = None, **headers: str) -> Answer:
    """Returns an answer of `body` that says it has `length` bytes."""

    def send(connection: socket.socket, _: int) -> None:
        lines = [f"HTTP/1.1 {status}", "Connection: close"]
        lines += [f"Content-Length: {len(body) if length is None else length}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    return send


def good(connection: socket.socket, begin: int) -> None:
    span = f"bytes {begin}-{SIZE - 1}/{SIZE}"
    answer("206 Partial Content" if begin else "200 OK", CONTENT[begin:], Content_Range=span)(connection, begin)


def stalls(connection: socket.socket, _: int) -> None:
    """Sends half of the file, and then nothing until the other side gives up."""
    answer(body=CONTENT[:HALF], length=SIZE)(connection, 0)
    connection.recv(1)


def resets(connection: socket.socket, _: int) -> None:
    answer(body=CONTENT[:HALF], length=SIZE)(connection, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() sends a reset


def is_silent(connection: socket.socket, _: int) -> None:
    connection.recv(1)


def chunks_that_break_off(connection: socket.socket, _: int) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.sendall(head + b"%x\r\n" % SIZE + CONTENT[:HALF])


def no_http(connection: socket.socket, _: int) -> None:
    connection.sendall(b"\x00\x01 hello\r\n\r\n")


PART = "206 Partial Content"
PAGE = b"<html><body>Please log in to the network</body></html>"
# name: (answers one after the other, the last one again and again; bytes in the .part file before, or None;
#        what the message matches, None where the file comes; how often the server is asked)
CASES: dict[str, tuple[Sequence[Answer], bytes | None, str | None, int]] = {
    "stalls once": ([stalls, good], None, None, 2),
    "always stalls": ([stalls], None, r"timed out\): run again to resume it", 3),
    "resets once": ([resets, good], None, None, 2),
    "always resets": ([resets], None, r"reset by peer\): run again", 3),
    "is silent": ([is_silent], None, r"timed out\): run again", 3),
    "closes": ([lambda *_: None], None, "closed connection without response", 3),
    "speaks no HTTP": ([no_http], None, "cannot download", 3),
    "busy, then well": ([answer("503 Service Unavailable"), answer("429 Too Many Requests"), good], None, None, 3),
    "broken": ([answer("500 Internal Server Error")], None, "Internal Server Error", 3),
    "absent": ([answer("404 Not Found")], None, r"Not Found\): run again, or give a folder with numbers.bin", 1),
    "forbidden": ([answer("403 Forbidden")], None, "Forbidden", 1),
    "redirects in a loop": ([answer("302 Found", Location="/numbers.bin")], None, "infinite loop", 5),
    "says fewer bytes": ([answer(length=HALF)], None, "truncated or altered", 1),
    "says more bytes": ([answer(length=SIZE + 10)], None, f"ended after {SIZE} of {SIZE + 10}", 3),
    "says -5 bytes": ([answer(length=-5)], None, None, 1),
    "says x bytes": ([answer(length="x")], None, None, 1),
    "chunks that break off": ([chunks_that_break_off], None, "IncompleteRead", 3),
    "a page in its place": ([answer(body=PAGE)], None, "truncated or altered", 1),
    "one byte altered": ([answer(body=CONTENT[:-1] + b"x")], None, "truncated or altered", 1),
    "resumes": ([good], CONTENT[:HALF], None, 1),
    "ignores the range": ([answer()], CONTENT[:HALF], None, 1),
    "another range": ([answer(PART, CONTENT[9:], Content_Range=f"bytes 9-{SIZE - 1}/{SIZE}"), good], CONTENT[:HALF],
                      None, 2),
    "a range without its place": ([answer(PART, CONTENT[HALF:]), good], CONTENT[:HALF], None, 2),
    "resumes what is damaged": ([good], bytes(HALF), None, 2),
    "resumes what is too long": ([answer("416 Range Not Satisfiable"), good], CONTENT + b"x", None, 2),
}  # fmt: skip


class Server:
    """Answers each connection by the next of `answers`, the last one again and again."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers, self.asked = list(answers), 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while True:
            connection, _ = self.socket.accept()
            with connection:
                request = b""
                while not request.endswith(b"\r\n\r\n"):
                    if not (received := connection.recv(4096)):
                        return  # of `end`
                    request += received
                begin = next((line for line in request.split(b"\r\n") if line.lower().startswith(b"range:")), b"=0-")
                send = self.answers[min(self.asked, len(self.answers) - 1)]
                self.asked += 1
                with suppress(OSError):  # the other side gave up
                    send(connection, int(begin.split(b"=")[1][:-1]))

    def end(self) -> None:
        socket.create_connection(self.socket.getsockname()).close()
        self.thread.join()
        self.socket.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(url, "PAUSES_S", (0, 0))
    monkeypatch.setattr(url, "TIMEOUT_S", 0.1)
    yield


@pytest.mark.parametrize("case", CASES)
def test_a_bad_server_gives_the_file_or_one_line(case: str, tmp_path: Path, quick: None) -> None:
    answers, before, message, asked = CASES[case]
    target = tmp_path / "numbers.bin"
    part = tmp_path / "numbers.bin.part"
    if before is not None:
        part.write_bytes(before)
    server = Server(answers)
    address = f"http://127.0.0.1:{server.socket.getsockname()[1]}/numbers.bin"
    try:
        if message is None:
            assert from_url(address, SHA256, target).read_bytes() == CONTENT
            assert [path.name for path in tmp_path.iterdir()] == ["numbers.bin"]
        else:
            with pytest.raises(UserError, match=message) as caught:
                from_url(address, SHA256, target)
            assert "\n" not in str(caught.value) and not target.exists()
            assert not part.exists() or CONTENT.startswith(part.read_bytes())
        assert server.asked == asked
    finally:
        server.end()


def test_a_full_disk_is_not_taken_for_the_connection(tmp_path: Path, quick: None) -> None:
    server = Server([good])
    (tmp_path / "numbers.bin.part").symlink_to("/dev/full")
    try:
        with pytest.raises(UserError, match=r"cannot write .*numbers.bin.part \(No space left on device\): make room"):
            from_url(f"http://127.0.0.1:{server.socket.getsockname()[1]}/numbers.bin", SHA256, tmp_path / "numbers.bin")
        assert server.asked == 1
    finally:
        server.end()
