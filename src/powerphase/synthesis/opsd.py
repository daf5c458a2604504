"""The official signals: one file of Open Power System Data, fetched once, whole and unchanged.

The file is 112 MB on a public server, so a download survives cut connections: what has arrived is
kept in a `.part` file beside the target and continued. It becomes the cached file only when its
length and sha256 are those of the published one.
"""

import hashlib
import http.client
import socket
import time
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from platformdirs import user_cache_dir

from powerphase.errors import DownloadError
from powerphase.synthesis.signals import Signals, read_signals

URL = (
    "https://data.open-power-system-data.org/time_series/2020-10-06/"
    "time_series_15min_singleindex.csv"
)
SIZE = 112_072_477
SHA256 = "194f3ee7d110d04389751602132899172cdd8b7ca73c07d6e9009ddac066b2a1"
DOI = "10.25832/time_series/2020-10-06"
ATTRIBUTION = (
    "Open Power System Data, 2020, Data Package Time series, version 2020-10-06, "
    f"https://doi.org/{DOI}; primary data from the ENTSO-E Transparency Platform and the "
    "transmission system operators, whose terms apply and should be checked before passing it on"
)

ATTEMPTS = 4

PAUSE_S = 1.0
"""Wait before the second attempt; it doubles before each further one."""

TIMEOUT_S = 30.0
"""How long the server may stay silent before the connection counts as cut."""

_CHUNK = 1 << 20
_ELSEWHERE = f"see https://doi.org/{DOI} for where the published file is now"
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})

Progress = Callable[[int, int], None]
"""Told after every piece: bytes that are here, bytes in all."""


def fetch(
    url: str = URL,
    size: int = SIZE,
    sha256: str = SHA256,
    folder: Path | None = None,
    on_progress: Progress | None = None,
) -> Path:
    """The cached file at `url`, downloaded if it is not there; exactly `size` bytes and `sha256`.

    Raises:
        DownloadError: The file did not come whole and unchanged, or could not be written.
    """
    target = _cached(url, folder)
    part = target.with_name(target.name + ".part")
    try:
        if _is_intact(target, size, sha256):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        _complete(url, part, size, on_progress or (lambda done, total: None))
        _check(url, part, sha256)
        part.replace(target)
    except OSError as error:
        # The network's errors never get here: what is left concerns the disk.
        advice = f"free {size / 1e6:.1f} MB" if error.errno == ENOSPC else "check the folder"
        raise DownloadError(
            f"{url} could not be kept in {str(part.parent)!r} ({error.strerror}); {advice} and run "
            "it again"
        ) from error
    return target


def load_opsd(folder: Path | None = None) -> Signals:
    """Load, solar and wind [MW] of 2015 and 2016 from the cached official file: edition `opsd`.

    Raises:
        DownloadError: The file has not been fetched, or is no longer what was fetched.
        SignalError: The file cannot be read.
    """
    path = _cached(URL, folder)
    if not path.exists():
        raise DownloadError(
            f"the OPSD file is not at {str(path)!r}; run `powerphase signals fetch` "
            f"({SIZE / 1e6:.0f} MB) or use the embedded `synthetic` signals"
        )
    if not _is_intact(path, SIZE, SHA256):
        raise DownloadError(
            f"{str(path)!r} is not the published OPSD file, needed {SIZE:,} bytes with sha256 "
            f"{SHA256}; run `powerphase signals fetch` to replace it"
        )
    return read_signals(path, "opsd", attribution=ATTRIBUTION)


class _Interrupted(Exception):
    """A connection that ended early or a server that is busy: worth another attempt."""


def _cached(url: str, folder: Path | None) -> Path:
    """Where the file of `url` is kept."""
    return (folder or Path(user_cache_dir("powerphase"))) / PurePosixPath(urlsplit(url).path).name


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_intact(path: Path, size: int, sha256: str) -> bool:
    """Whether the file is there with the right length and content."""
    return path.is_file() and path.stat().st_size == size and _sha256_of(path) == sha256


def _check(url: str, part: Path, sha256: str) -> None:
    """Remove a finished download that is not the published file, and say so."""
    if (found := _sha256_of(part)) != sha256:
        part.unlink()
        raise DownloadError(
            f"{url} came with sha256 {found}, needed {sha256}, and was removed; run it again, and "
            "if this repeats the published file has changed"
        )


def _complete(url: str, part: Path, size: int, report: Progress) -> None:
    """Bring `part` to `size` bytes, over several connections if need be."""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
        try:
            return _continue(url, part, size, report)
        except _Interrupted as error:
            reason = error
    raise DownloadError(
        f"{url}: {reason} ({ATTEMPTS} attempts); {_length(part):,} of {size:,} bytes are kept, run "
        "it again to continue from there"
    ) from reason


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _continue(url: str, part: Path, size: int, report: Progress) -> None:
    """Append to `part` what one connection brings of the rest."""
    start = _length(part)
    if start == size:
        return
    with _open(url, start if start < size else 0) as response:
        # Any answer but 206 carries the file from its beginning.
        start = start if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        if response.length is not None and start + response.length != size:
            found = f"{start + response.length:,} bytes, needed {size:,}"
            raise DownloadError(f"{url} announces {found}; {_ELSEWHERE}")
        with part.open("ab" if start else "wb") as file:
            _copy(response, file, start, size, report)


def _open(url: str, start: int) -> http.client.HTTPResponse:
    """The server's answer with the file from byte `start` on, or all of it."""
    headers = {"User-Agent": "powerphase"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response: http.client.HTTPResponse = urlopen(
            Request(url, headers=headers), timeout=TIMEOUT_S
        )
    except HTTPError as error:
        error.close()
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _open(url, 0)
        raise _refusal(url, error) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error
    return response


def _refusal(url: str, error: HTTPError) -> Exception:
    """What to raise for an answer that carries no file."""
    found = f"the server answered {error.code} {error.reason}"
    if error.code in _BUSY:
        return _Interrupted(found)
    return DownloadError(f"{url}: {found}, needed the file; {_ELSEWHERE}")


def _unreachable(url: str, error: Exception) -> Exception:
    """What to raise when no answer came."""
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, socket.gaierror):
        found = f"the host {urlsplit(url).hostname!r} was not found ({reason.strerror})"
        return DownloadError(f"{found}; check the network connection and run it again")
    return _Interrupted(f"no connection ({reason})")


def _copy(
    response: http.client.HTTPResponse, file: BinaryIO, done: int, size: int, report: Progress
) -> None:
    """Write the answer to `file`, which holds `done` bytes, up to `size`."""
    report(done, size)
    while chunk := _read(response):
        done += len(chunk)
        if done > size:
            file.truncate(0)
            found = f"{response.geturl()} sends more than the {size:,} bytes needed"
            raise DownloadError(f"{found}; {_ELSEWHERE}")
        file.write(chunk)
        report(done, size)
    if done < size:
        raise _Interrupted("the connection was cut")


def _read(response: http.client.HTTPResponse) -> bytes:
    """The next piece of the answer, empty at its end."""
    try:
        # read1, not read: what has come before a time-out is not lost with it.
        return response.read1(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(f"the connection was cut ({error})") from error
