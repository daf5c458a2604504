"""Data sets of a bench: made when they are missing, and without them their cells fail alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerphase.bench import data as bench_data
from powerphase.bench.data import DataSet, data_sets
from powerphase.bench.request import Table
from powerphase.bench.scheduler import Bench, Options
from powerphase.cli.bench_display import BenchDisplay
from powerphase.dataset import generation, open_store
from powerphase.errors import CaseError, StoreError
from powerphase.grid import case_folder
from powerphase.synthesis import Signals
from tests.bench.test_workers import Paper
from tests.dataset.exact import exact_signals


@pytest.fixture(autouse=True)
def thirty_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals that are soon solved, whatever is asked for."""

    def load(source: str, edition: str | None = None) -> Signals:
        return exact_signals()

    monkeypatch.setattr(bench_data, "_signals", load)
    monkeypatch.setattr(generation, "load_signals", load)


class Watching(BenchDisplay):
    """Notes what is made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    @contextmanager
    def making(self, data: DataSet) -> Iterator[Callable[[int, int], None]]:
        self.made.append(data.grid)
        yield lambda done, total: None


def test_what_is_missing_is_made_once_and_is_what_the_plan_said(tmp_path: Path) -> None:
    table = Table(["ieee14"], ["last-week", "climatology"], data=tmp_path, out=tmp_path / "r")
    plan, watcher = table.plan(), Watching()
    bench = Bench(plan, Options(), Paper(), watcher)
    (planned,) = {cell.data for cell in plan.cells}
    assert (planned.is_there, planned.signals) == (False, "synthetic")
    table._make(planned, bench, watcher)
    made = open_store(tmp_path / "ieee14").manifest
    assert (made.fingerprint, made.edition) == (planned.fingerprint, planned.edition)
    assert 4 * made.n_buses == planned.n_channels
    (there,) = data_sets(["ieee14"], tmp_path)
    assert there.is_there
    table._make(there, bench, watcher)
    assert watcher.made == ["ieee14"]


def test_an_unfinished_data_set_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (planned,) = data_sets(["ieee14"], tmp_path)

    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        planned.make(stop)
    (unfinished,) = data_sets(["ieee14"], tmp_path)
    assert not unfinished.is_there
    unfinished.make()
    assert data_sets(["ieee14"], tmp_path)[0].is_there


def test_signals_of_another_edition_than_is_asked_for_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="of edition measured, and --signals opsd make one of ex"):
        data_sets(["ieee14"], tmp_path, "opsd", "measured")


def test_two_grids_of_one_name_are_refused_and_one_given_twice_is_one(tmp_path: Path) -> None:
    files = [tmp_path / folder / "net.m" for folder in ("a", "b")]
    for file, case in zip(files, ("case14", "case30"), strict=True):
        file.parent.mkdir()
        file.write_bytes((case_folder() / f"{case}.m").read_bytes())
    one, other = map(str, files)
    with pytest.raises(CaseError, match=f"^{one} and {other} are both called net, by which"):
        data_sets([one, "ieee14", other], tmp_path)
    same = f"{tmp_path}/b/../a/net.m"
    found = data_sets([one, "ieee14", same, "ieee14"], tmp_path)
    assert [data.given for data in found] == [one, "ieee14"]


def test_a_case_that_was_edited_does_not_get_the_data_of_the_old_one(tmp_path: Path) -> None:
    file, old = tmp_path / "net.m", (case_folder() / "case14.m").read_text()
    file.write_text(old)
    data_sets([str(file)], tmp_path)[0].make()
    file.write_text(f"% no other numbers\n{old}")
    assert data_sets([str(file)], tmp_path)[0].is_there
    first = "\t1\t2\t0.01938\t0.05917\t0.0528\t0\t0\t0\t0\t0\t1\t-360\t360;\n"
    for was, is_now in (("21.7", "31.7"), (first, 2 * first), ("= 100;", "= 50;")):
        assert was in old
        file.write_text(old.replace(was, is_now))
        with pytest.raises(StoreError, match=r"from another case .* name the grid net to take"):
            data_sets([str(file)], tmp_path)
    assert data_sets(["net"], tmp_path)[0].is_there


def test_without_its_data_set_a_grid_s_cells_fail_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(data: DataSet, report: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(DataSet, "make", refuse)
    table = Table(["ieee14", "ieee30"], ["last-week"], data=tmp_path, out=tmp_path / "r")
    watcher = Watching()
    bench = Bench(table.plan(), Options(), Paper(), watcher)
    table._make(bench.queue[0].data, bench, watcher)
    assert [(f.grid, f.kind, f.sentence) for f in bench.failures] == [
        ("ieee14", "StoreError", "no data set: the disk is full")
    ]
    assert [cell.grid for cell in bench.queue] == ["ieee30"]
