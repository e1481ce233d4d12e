"""Fetching an official archive: resumed where it was interrupted, checked, unpacked.

The download grows in a ``.part`` file beside its destination and takes its own name only once its checksum is right. An archive that is
already there (put by hand on a machine without network, say) is used as it is.
"""

import hashlib
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import BadGzipFile
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from bayesprune.data.folders import DATA_VARIABLE
from bayesprune.errors import DataError, StorageError

CHUNK = 1 << 18
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Archive:
    """A published archive.

    Attributes:
        url: where it is.
        md5: of the whole file, as its authors publish it.
        folder: the folder inside it.
        members: the files of that folder that are wanted.
    """

    url: str
    md5: str
    folder: str
    members: tuple[str, ...]

    @property
    def file_name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def download(archive: Archive, into: Path, timeout: float = TIMEOUT_SECONDS, show_progress: bool = True) -> Path:
    """Fetch, check and unpack an archive; returns the folder with its files.

    Args:
        archive: what to fetch.
        into: the folder that will hold the archive and, beside it, the folder of its files.
        timeout: seconds of silence after which the server is given up.
        show_progress: a bar with speed and time left, on standard error.

    Raises:
        DataError: no network, a refusing server, a broken connection, a wrong checksum, an archive without the files.
        StorageError: the folder cannot be written, or the disk is full.
    """
    path = into / archive.file_name
    with _storage(into):
        into.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _fetch(archive, path, timeout, show_progress)
        elif _md5(path) != archive.md5:
            raise DataError(f"{path}: this archive does not have the published checksum {archive.md5}; remove it and start again")
        return _unpack(archive, path, into)


@contextmanager
def _storage(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise StorageError(
            f"{where}: cannot be stored ({error.strerror or error}); free some space, change permissions or name another folder"
        ) from error


def _fetch(archive: Archive, path: Path, timeout: float, show_progress: bool) -> None:
    part = path.with_name(f"{path.name}.part")
    with _bar(show_progress) as bar:
        task = bar.add_task(archive.file_name, total=None)
        for chunk_end, total in _transfer(archive, part, timeout):
            bar.update(task, completed=chunk_end, total=total)
    found = _md5(part)
    if found != archive.md5:
        part.unlink()
        raise DataError(
            f"{archive.url}: the download has checksum {found}, published is {archive.md5}; it was removed, start again, "
            "and if this repeats the server does not send the original file"
        )
    part.replace(path)


def _bar(show: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not show)


def _transfer(archive: Archive, part: Path, timeout: float) -> Iterator[tuple[int, int | None]]:
    """Bring the ``.part`` file to its full length; yields how far it is and, where the server says so, how far it is to go."""
    start = part.stat().st_size if part.exists() else 0
    response = _request(archive, start, timeout, part.parent)
    if response is None:
        # The server has nothing after what is here: either all of it is, which the checksum will tell, or the file is not ours.
        if _md5(part) == archive.md5:
            return
        part.unlink()
        start = 0
        response = _request(archive, start, timeout, part.parent)
    if response is None:
        raise DataError(f"{archive.url}: the server does not serve the file from its start; try later or get the archive elsewhere")
    with response:
        if not _continues(response, start):
            start = 0
        remaining = response.headers.get("Content-Length")
        total = start + int(remaining) if remaining and remaining.isdigit() else None
        done = start
        with part.open("ab" if start else "wb") as file:
            yield done, total
            for chunk in _chunks(archive, response):
                file.write(chunk)
                done += len(chunk)
                yield done, total
    if total is not None and done < total:
        raise DataError(f"{archive.url}: the connection was lost after {done} of {total} bytes; run again to go on from there")


def _request(archive: Archive, start: int, timeout: float, folder: Path) -> HTTPResponse | None:
    """Ask for the archive from a byte onwards; none where the server has no such byte (status 416)."""
    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={start}-"} if start else {})
    by_hand = (
        f"on a machine without network, put {archive.file_name} or its unpacked folder {archive.folder} into {folder}, "
        f"or set {DATA_VARIABLE} to the folder that has them"
    )
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
        return response
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            return None
        raise DataError(f"{archive.url}: the server answers {error.code} {error.reason}; try later, or {by_hand}") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{archive.url}: cannot be reached ({reason}); check the network, or {by_hand}") from error


def _continues(response: HTTPResponse, start: int) -> bool:
    """Whether the answer begins at ``start``: a server may ignore the range and send the whole file."""
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _chunks(archive: Archive, response: HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(CHUNK)
        except (OSError, HTTPException) as error:
            raise DataError(f"{archive.url}: the connection was lost ({error}); run again to go on from where it broke") from error
        if not chunk:
            return
        yield chunk


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _unpack(archive: Archive, path: Path, into: Path) -> Path:
    """Unpack the wanted files beside their place, then move each in by one rename: a file under its own name is always whole."""
    wanted = {f"{archive.folder}/{name}": name for name in archive.members}
    target = into / archive.folder
    with tempfile.TemporaryDirectory(dir=into, prefix=".unpacking-") as scratch:
        try:
            with tarfile.open(path, "r:gz") as tar:
                for member in tar:
                    if member.isfile() and member.name in wanted:
                        tar.extract(member, scratch, filter="data")
        except (tarfile.TarError, BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path}: the archive cannot be unpacked ({error}); remove it and start again") from error
        missing = [name for inside, name in wanted.items() if not Path(scratch, inside).is_file()]
        if missing:
            raise DataError(f"{path}: no {', '.join(missing)} in this archive; remove it and start again")
        target.mkdir(exist_ok=True)
        for inside, name in wanted.items():
            Path(scratch, inside).replace(target / name)
    return target
