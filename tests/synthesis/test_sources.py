"""The download, from a local HTTP server that misbehaves on request; and named sources."""

import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerphase.errors import DownloadError
from powerphase.synthesis import sources

CONTENT = np.random.default_rng(0).bytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
HALF = len(CONTENT) // 2


class Server(ThreadingHTTPServer):
    """Serves CONTENT; `answers` says how, one word per request, the last word from then on."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = ["well"]
        self.ranges: list[str | None] = []
        self.sent: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/data/series.csv"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        self.server.ranges.append(self.headers["Range"])
        if answer.isdigit():
            self.send_error(int(answer))
            return
        start = int(self.headers["Range"][6:-1]) if self.headers["Range"] else 0
        if answer == "whole":
            start = 0
        body = CONTENT[start:]
        self.send_response(206 if start else 200)
        if answer != "endless":
            extra = {"announce-more": 1, "announce-less": -1}.get(answer, 0)
            self.send_header("Content-Length", str(len(body) + extra))
        self.end_headers()
        if answer == "cut":
            body = body[: len(body) // 2]
        elif answer == "stall":
            body = body[:HALF]
        elif answer == "endless":
            body += b"and more"
        elif answer == "spoilt":
            body = bytes(len(body))
        self.server.sent.append(len(body))
        self.wfile.write(body)
        if answer == "stall":
            time.sleep(0.5)

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(sources, "PAUSE_S", 0.001)
    with Server() as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetch(server: Server, folder: Path, **options: object) -> Path:
    arguments: dict[str, Any] = {
        "url": server.url,
        "size": len(CONTENT),
        "sha256": SHA256,
        "folder": folder,
    }
    return sources.fetch_opsd(**(arguments | options))


def part_in(folder: Path) -> Path:
    return folder / "series.csv.part"


def test_a_file_is_downloaded_and_progress_reported(server: Server, tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    path = fetch(
        server, tmp_path / "new" / "folder", on_progress=lambda *report: reports.append(report)
    )
    assert path == tmp_path / "new" / "folder" / "series.csv"
    assert path.read_bytes() == CONTENT
    assert reports[0] == (0, len(CONTENT))
    assert reports[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert not part_in(path.parent).exists()


def test_an_intact_cached_file_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    assert fetch(server, tmp_path) == fetch(server, tmp_path)
    assert server.ranges == [None]


@pytest.mark.parametrize("damaged", [CONTENT[:-1], bytes(len(CONTENT))], ids=["short", "other"])
def test_a_damaged_cached_file_is_replaced(server: Server, tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "series.csv").write_bytes(damaged)
    assert fetch(server, tmp_path).read_bytes() == CONTENT


def test_the_default_folder_is_the_users_cache(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "user_cache_dir", lambda name: str(tmp_path / name))
    path = sources.fetch_opsd(server.url, len(CONTENT), SHA256)
    assert path == tmp_path / "powerphase" / "series.csv"


def test_a_lost_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.answers = ["cut", "well"]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={HALF}-"]
    assert server.sent == [HALF, len(CONTENT) - HALF]


def test_a_silent_server_counts_as_a_lost_connection(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "TIMEOUT_S", 0.1)
    server.answers = ["stall", "well"]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={HALF}-"]


def test_repeatedly_lost_connections_raise_and_the_next_run_resumes(
    server: Server, tmp_path: Path
) -> None:
    server.answers = ["cut"]
    with pytest.raises(DownloadError, match="of 300,000 bytes"):
        fetch(server, tmp_path)
    kept = part_in(tmp_path).stat().st_size
    assert kept == sum(server.sent)
    assert len(server.sent) == sources.ATTEMPTS
    server.answers = ["well"]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.sent[-1] == len(CONTENT) - kept


def test_a_complete_part_is_checked_and_not_downloaded(server: Server, tmp_path: Path) -> None:
    part_in(tmp_path).write_bytes(CONTENT)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == []


def test_a_server_that_ignores_ranges_sends_the_whole_file(server: Server, tmp_path: Path) -> None:
    server.answers = ["cut", "whole"]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.sent == [HALF, len(CONTENT)]


def test_an_unsatisfiable_range_restarts_the_download(server: Server, tmp_path: Path) -> None:
    server.answers = ["cut", "416", "well"]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={HALF}-", None]


def test_a_part_that_is_too_long_restarts_the_download(server: Server, tmp_path: Path) -> None:
    part_in(tmp_path).write_bytes(CONTENT + b"?")
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None]


def test_a_wrong_checksum_raises_and_removes_the_part(server: Server, tmp_path: Path) -> None:
    server.answers = ["spoilt"]
    actual = hashlib.sha256(bytes(len(CONTENT))).hexdigest()
    with pytest.raises(DownloadError, match=f"{actual}.*{SHA256}"):
        fetch(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("status", ["404", "403", "410", "416"])
def test_a_client_error_is_not_retried(server: Server, tmp_path: Path, status: str) -> None:
    server.answers = [status]
    with pytest.raises(DownloadError, match=rf"{status} .*doi\.org"):
        fetch(server, tmp_path)
    assert server.ranges == [None]


def test_a_busy_server_is_retried(server: Server, tmp_path: Path) -> None:
    server.answers = ["500", "503", "well"]
    assert fetch(server, tmp_path).read_bytes() == CONTENT


def test_a_server_that_stays_busy_raises(server: Server, tmp_path: Path) -> None:
    server.answers = ["503"]
    with pytest.raises(DownloadError, match=r"503 .*4 attempts"):
        fetch(server, tmp_path)
    assert len(server.ranges) == sources.ATTEMPTS == 4


@pytest.mark.parametrize(
    ("answer", "length"), [("announce-more", "300,001"), ("announce-less", "299,999")]
)
def test_another_length_raises_before_the_download(
    server: Server, tmp_path: Path, answer: str, length: str
) -> None:
    server.answers = [answer]
    with pytest.raises(DownloadError, match=f"{length} bytes, .*300,000"):
        fetch(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_too_much_data_raises_and_is_discarded(server: Server, tmp_path: Path) -> None:
    server.answers = ["endless"]
    with pytest.raises(DownloadError, match="more than 300,000 bytes"):
        fetch(server, tmp_path)
    assert part_in(tmp_path).stat().st_size == 0


def test_an_unknown_host_raises(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_dns(*args: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_dns)
    with pytest.raises(DownloadError, match=r"data\.example"):
        fetch(server, tmp_path, url="http://data.example/series.csv")


def test_an_unreachable_server_raises_with_the_reason(server: Server, tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}/series.csv"
        with pytest.raises(DownloadError, match=r"refused.*0 of 300,000 bytes"):
            fetch(server, tmp_path, url=url)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_raises_with_the_space_needed(server: Server, tmp_path: Path) -> None:
    part_in(tmp_path).symlink_to("/dev/full")
    with pytest.raises(DownloadError, match=r"0\.3 MB"):
        fetch(server, tmp_path)


def test_a_folder_that_cannot_be_created_raises(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadError, match="file'"):
        fetch(server, tmp_path / "file")


def test_opsd_signals_must_be_fetched_first(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="run `powerphase signals fetch`"):
        sources.load_opsd(tmp_path)


def test_an_altered_opsd_file_raises(tmp_path: Path) -> None:
    (tmp_path / "time_series_15min_singleindex.csv").write_text("utc_timestamp\n")
    with pytest.raises(DownloadError, match="sha256"):
        sources.load_opsd(tmp_path)


def test_opsd_signals_have_edition_and_attribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = np.datetime64("2015-06-01T00:00:00") + np.arange(96) * np.timedelta64(900, "s")
    header = (
        "utc_timestamp,DE_load_actual_entsoe_transparency,"
        "DE_solar_generation_actual,DE_wind_generation_actual\n"
    )
    text = header + "".join(f"{time}Z,50000,3000,9000\n" for time in step)
    (tmp_path / "time_series_15min_singleindex.csv").write_text(text)
    monkeypatch.setattr(sources, "OPSD_SIZE", len(text))
    monkeypatch.setattr(sources, "OPSD_SHA256", hashlib.sha256(text.encode()).hexdigest())
    signals = sources.load_opsd(tmp_path)
    assert signals.edition == "opsd"
    assert sources.OPSD_DOI in signals.attribution
    assert signals.values_mw.mean(axis=0).tolist() == [50000, 3000, 9000]
