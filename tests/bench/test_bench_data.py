"""The data sets of a bench: made if they are missing; if that fails, only their cells fail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerphase import Signals
from powerphase.bench import BenchRequest, DataSet, Scheduler, find_data_sets, make_plan
from powerphase.bench import request as bench_request
from powerphase.cli.bench_display import BenchDisplay
from powerphase.dataset import generation, open_store
from powerphase.errors import CaseError, StoreError
from powerphase.grid import case_folder
from tests.bench.test_workers import RecordingEngine
from tests.dataset.exact import exact_signals


@pytest.fixture(autouse=True)
def thirty_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short signals, whichever are requested."""

    def load(source: str, edition: str | None = None) -> Signals:
        return exact_signals()

    monkeypatch.setattr(bench_request, "_load_signals", load)
    monkeypatch.setattr(generation, "load_signals", load)


class RecordingDisplay(BenchDisplay):
    """Records which data sets are made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    @contextmanager
    def making(self, data: DataSet) -> Iterator[Callable[[int, int], None]]:
        self.made.append(data.grid)
        yield lambda done, total: None


def test_a_missing_data_set_is_made_once_and_as_planned(tmp_path: Path) -> None:
    request = BenchRequest(
        ["ieee14"], ["last-week", "climatology"], data=tmp_path, out=tmp_path / "r"
    )
    plan, display = make_plan(request), RecordingDisplay()
    scheduler = Scheduler(plan, RecordingEngine(), display)
    (planned,) = {cell.data for cell in plan.cells}
    assert (planned.exists, planned.signals) == (False, "synthetic")
    scheduler.make_data(planned)
    manifest = open_store(tmp_path / "ieee14").manifest
    assert (manifest.fingerprint, manifest.edition) == (planned.fingerprint, planned.edition)
    assert 4 * manifest.n_buses == planned.n_channels
    (existing,) = find_data_sets(["ieee14"], tmp_path)
    assert existing.exists
    scheduler.make_data(existing)
    assert display.made == ["ieee14"]


def test_an_unfinished_data_set_is_finished(tmp_path: Path) -> None:
    (planned,) = find_data_sets(["ieee14"], tmp_path)

    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        planned.make(interrupt)
    (unfinished,) = find_data_sets(["ieee14"], tmp_path)
    assert not unfinished.exists
    unfinished.make()
    assert find_data_sets(["ieee14"], tmp_path)[0].exists


def test_signals_must_have_the_requested_edition(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="measured"):
        find_data_sets(["ieee14"], tmp_path, "opsd", "measured")


def test_two_grids_of_one_name_raise_and_one_given_twice_counts_once(tmp_path: Path) -> None:
    files = [tmp_path / folder / "net.m" for folder in ("a", "b")]
    for file, case in zip(files, ("case14", "case30"), strict=True):
        file.parent.mkdir()
        file.write_bytes((case_folder() / f"{case}.m").read_bytes())
    first, second = map(str, files)
    with pytest.raises(CaseError, match=f"^{first} and {second} "):
        find_data_sets([first, "ieee14", second], tmp_path)
    same = f"{tmp_path}/b/../a/net.m"
    data_sets = find_data_sets([first, "ieee14", same, "ieee14"], tmp_path)
    assert [data.source for data in data_sets] == [first, "ieee14"]


def test_the_data_set_of_a_case_that_was_edited_since_is_rejected(tmp_path: Path) -> None:
    file, old = tmp_path / "net.m", (case_folder() / "case14.m").read_text()
    file.write_text(old)
    find_data_sets([str(file)], tmp_path)[0].make()
    file.write_text(f"% no other numbers\n{old}")
    assert find_data_sets([str(file)], tmp_path)[0].exists
    branch = "\t1\t2\t0.01938\t0.05917\t0.0528\t0\t0\t0\t0\t0\t1\t-360\t360;\n"
    for before, after in (("21.7", "31.7"), (branch, 2 * branch), ("= 100;", "= 50;")):
        assert before in old
        file.write_text(old.replace(before, after))
        with pytest.raises(StoreError, match=r"net\.m"):
            find_data_sets([str(file)], tmp_path)
    assert find_data_sets(["net"], tmp_path)[0].exists


def test_without_its_data_set_only_the_cells_of_a_grid_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(data: DataSet, report: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(DataSet, "make", fail)
    request = BenchRequest(["ieee14", "ieee30"], ["last-week"], data=tmp_path, out=tmp_path / "r")
    scheduler = Scheduler(make_plan(request), RecordingEngine(), RecordingDisplay())
    scheduler.make_data(scheduler.queue[0].data)
    (failure,) = scheduler.failures
    assert (failure.grid, failure.kind) == ("ieee14", "StoreError")
    assert "the disk is full" in failure.sentence
    assert [cell.grid for cell in scheduler.queue] == ["ieee30"]
