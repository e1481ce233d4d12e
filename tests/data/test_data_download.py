import hashlib
import io
import socket
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from bayesprune.data import DATA_VARIABLE, Archive, download
from bayesprune.errors import DataError, StorageError

MEMBERS = {"one.bin": bytes(range(256)) * 400, "two.bin": b"two" * 5000}


def packed(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=0) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class Server(ThreadingHTTPServer):
    """Serves one file; its fields say how well it behaves and what it was asked."""

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.knows_ranges = True
        self.break_after: int | None = None
        self.silent = False
        self.status: int | None = None
        self.asked: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.asked.append(asked)
        if server.silent:
            self.rfile.read(1)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.knows_ranges else 0
        if server.status or (asked and start >= len(server.content)):
            self.send_error(server.status or 416)
            return
        body = server.content[start:]
        self.send_response(206 if asked and server.knows_ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        if asked and server.knows_ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.end_headers()
        self.wfile.write(body[: server.break_after])

    def log_message(self, *args: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = Server(packed({f"set/{name}": content for name, content in MEMBERS.items()} | {"set/readme.html": b"unwanted"}))
    thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


@pytest.fixture
def archive(server: Server) -> Archive:
    url = f"http://127.0.0.1:{server.server_port}/some/set.tar.gz"
    return Archive(url, hashlib.md5(server.content).hexdigest(), "set", tuple(MEMBERS))


def fetched(archive: Archive, into: Path) -> Path:
    return download(archive, into, timeout=5, show_progress=False)


def assert_whole(folder: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == MEMBERS
    assert sorted(path.name for path in folder.parent.iterdir()) == ["set", "set.tar.gz"]


def test_full_download(server: Server, archive: Archive, tmp_path: Path) -> None:
    folder = fetched(archive, tmp_path / "new" / "data")
    assert folder == tmp_path / "new" / "data" / "set"
    assert_whole(folder)
    assert server.asked == [None]


def test_progress_goes_to_standard_error(archive: Archive, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    download(archive, tmp_path)
    out, err = capfd.readouterr()
    assert out == ""
    assert "set.tar.gz" in err


def test_resumes_after_an_interruption(server: Server, archive: Archive, tmp_path: Path) -> None:
    server.break_after = 10_000
    with pytest.raises(DataError, match="connection was lost"):
        fetched(archive, tmp_path)
    assert (tmp_path / "set.tar.gz.part").stat().st_size == 10_000
    server.break_after = None
    assert_whole(fetched(archive, tmp_path))
    assert server.asked == [None, "bytes=10000-"]


def test_server_that_ignores_ranges(server: Server, archive: Archive, tmp_path: Path) -> None:
    server.knows_ranges = False
    (tmp_path / "set.tar.gz.part").write_bytes(b"x" * 500)
    assert_whole(fetched(archive, tmp_path))
    assert server.asked == ["bytes=500-"]


def test_part_that_was_complete(server: Server, archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz.part").write_bytes(server.content)
    assert_whole(fetched(archive, tmp_path))
    assert len(server.asked) == 1


def test_part_that_is_too_long_starts_again(server: Server, archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz.part").write_bytes(server.content + b"more")
    assert_whole(fetched(archive, tmp_path))
    assert server.asked == [f"bytes={len(server.content) + 4}-", None]


def test_wrong_checksum_removes_the_file(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="published is 0000"):
        fetched(replace(archive, md5="0" * 32), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert_whole(fetched(archive, tmp_path))


def test_archive_put_there_by_hand_needs_no_network(server: Server, archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(server.content)
    assert_whole(fetched(archive, tmp_path))
    assert server.asked == []


def test_wrong_archive_put_there_by_hand_is_not_removed(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"set\.tar\.gz: this archive does not have the published checksum"):
        fetched(archive, tmp_path)
    assert (tmp_path / "set.tar.gz").read_bytes() == b"mine"


def test_no_network(archive: Archive, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/set.tar.gz"
    with pytest.raises(DataError, match="cannot be reached") as caught:
        fetched(replace(archive, url=url), tmp_path)
    for part in (url, str(tmp_path), DATA_VARIABLE, "set.tar.gz"):
        assert part in str(caught.value)


def test_silent_server(server: Server, archive: Archive, tmp_path: Path) -> None:
    server.silent = True
    with pytest.raises(DataError, match=r"cannot be reached \(.*timed out"):
        download(archive, tmp_path, timeout=0.2, show_progress=False)


def test_refusing_server(server: Server, archive: Archive, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(DataError, match="the server answers 404"):
        fetched(archive, tmp_path)


def test_server_that_answers_416_to_everything(server: Server, archive: Archive, tmp_path: Path) -> None:
    server.status = 416
    (tmp_path / "set.tar.gz.part").write_bytes(b"x")
    with pytest.raises(DataError, match="the server answers 416"):
        fetched(archive, tmp_path)


def serve(server: Server, archive: Archive, content: bytes) -> Archive:
    server.content = content
    return replace(archive, md5=hashlib.md5(content).hexdigest())


def test_archive_without_a_wanted_file(server: Server, archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no two\.bin in this archive"):
        fetched(serve(server, archive, packed({"set/one.bin": b"1"})), tmp_path)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("content", [b"not an archive", packed({"set/one.bin": bytes(9000)})[:5000]])
def test_archive_that_cannot_be_unpacked(server: Server, archive: Archive, tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="cannot be unpacked"):
        fetched(serve(server, archive, content), tmp_path)


def test_unexpected_members_are_left_out(server: Server, archive: Archive, tmp_path: Path) -> None:
    members = {"../evil": b"evil", "/tmp/evil-absolute": b"evil", "set/other": b"evil"} | {f"set/{n}": c for n, c in MEMBERS.items()}
    assert_whole(fetched(serve(server, archive, packed(members)), tmp_path))
    assert not (tmp_path.parent / "evil").exists()


def test_link_in_place_of_a_wanted_file(server: Server, archive: Archive, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in MEMBERS:
            link = tarfile.TarInfo(f"set/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "../../elsewhere"
            tar.addfile(link)
    with pytest.raises(DataError, match=r"no one\.bin, two\.bin"):
        fetched(serve(server, archive, buffer.getvalue()), tmp_path)


def test_incomplete_folder_is_completed(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one.bin").write_bytes(b"old")
    assert_whole(fetched(archive, tmp_path))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_full_disk(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz.part").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left on device"):
        fetched(archive, tmp_path)


def test_file_in_place_of_the_folder(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    with pytest.raises(StorageError, match="data: cannot be stored"):
        fetched(archive, tmp_path / "data")
