"""Which cells a bench has, which of them are done, and what it refuses before it begins."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from math import nan
from pathlib import Path
from typing import Any

import pytest

from powerphase.bench.plan import Plan
from powerphase.bench.request import PAPER_GRIDS, Table
from powerphase.cli.bench_display import BenchDisplay
from powerphase.errors import ForecastError, PowerphaseError, ResultError, StoreError, UnknownName
from powerphase.evaluation.entrants import entrant
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.scoring import Evaluation, score
from powerphase.models.naive import Climatology, ClimatologyConfig
from powerphase.records.result import read_result, write_result
from powerphase.registry import bench_models
from powerphase.report import leaderboard
from powerphase.task.windows import Task
from tests.bench.conftest import TOYS

RESULTS = Path(__file__).parents[2] / "results"
Make = Callable[..., Table]


@pytest.fixture
def table(data: Path, tmp_path: Path) -> Make:
    def make(*models: str, **options: Any) -> Table:
        places = {"data": data, "out": tmp_path / "results", "runs": tmp_path / "runs"}
        return Table(("ieee14",), models, **{**places, "device": "cpu", **options})

    return make


@pytest.fixture(scope="module")
def climatology(data: Path) -> Evaluation:
    task = Task(data / "ieee14")
    return score(forecast(Climatology(), task, device="cpu"), task, device="cpu")


def cells(plan: Plan) -> list[str]:
    return [f"{cell.name}-{cell.seed}" for cell in plan.cells]


def test_a_model_that_takes_no_seed_has_one_cell_and_others_one_for_each(table: Make) -> None:
    plan = table("last-week", "ets+stale", "deepar+short", "oracle", f"{TOYS}:Steady").plan()
    seeds = (22, 42, 3142)
    assert cells(plan) == [
        "last-week-0",
        *(f"ets+stale-{seed}" for seed in seeds),
        *(f"deepar+short-{seed}" for seed in seeds),
        *(f"oracle-{seed}" for seed in seeds),
        *(f"steady-{seed}" for seed in seeds),
    ]
    assert {plan.state(cell) for cell in plan.cells} == {"to do"}


def test_one_model_by_two_names_is_one_cell(table: Make) -> None:
    words = ("ets+season-24+stale", "ets+stale+season-24", "ets+season-24-stale")
    assert cells(table(*words, seeds=("42", "42")).plan()) == ["ets+season-24-stale-42"]


def test_the_whole_table_is_that_of_the_paper(table: Make) -> None:
    assert PAPER_GRIDS == leaderboard.PAPER_GRIDS
    assert len(table(*bench_models()).plan().cells) == 3 + 3 * 11
    assert cells(table().plan()) == cells(table(*bench_models()).plan())


def test_a_training_has_a_folder_by_edition_grid_name_and_seed(table: Make, tmp_path: Path) -> None:
    plan = table("deepar", seeds=(7,)).plan()
    assert (
        plan.run_folder(replace(plan.cells[0].key, variant="short"))
        == tmp_path / "runs/exact/ieee14/deepar+short-7"
    )


def test_a_row_that_fits_is_done(table: Make, climatology: Evaluation, tmp_path: Path) -> None:
    climatology.save(tmp_path / "results")
    plan = table("climatology", "last-week").plan()
    assert [plan.state(cell) for cell in plan.cells] == ["done", "to do"]
    assert [cell.name for cell in plan.left()] == ["last-week"]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("fingerprint", 64 * "0", "another fingerprint than"),
        ("config", asdict(ClimatologyConfig(quantiles=17)), "another config than"),
        ("task_version", 2, "another task version than"),
    ],
)
def test_a_row_that_is_another_one_is_told_and_stays(
    table: Make, climatology: Evaluation, tmp_path: Path, field: str, value: Any, told: str
) -> None:
    row = replace(climatology.row, **{field: value})
    file = write_result(row, climatology.sidecar, tmp_path / "results")
    before = file.read_bytes()
    with pytest.raises(ResultError, match=f"climatology-0.json: holds a row with {told}"):
        table("climatology").plan()
    assert file.read_bytes() == before


def test_a_row_of_other_windows_is_none_of_this_task(
    table: Make, climatology: Evaluation, tmp_path: Path
) -> None:
    climatology.save(tmp_path / "results")
    plan = table("climatology", windows=3).plan()
    assert plan.task == "powerphase-day-ahead-3-windows"
    assert plan.state(plan.cells[0]) == "to do"


def test_a_corrupted_row_is_named(table: Make, climatology: Evaluation, tmp_path: Path) -> None:
    file = climatology.save(tmp_path / "results")
    file.write_text(file.read_text()[:-10])
    with pytest.raises(ResultError, match=r"climatology-0.json: not the JSON of a result"):
        table("last-week").plan()


def test_a_short_row_is_done_where_trainings_may_be_cut_and_only_there(
    table: Make, climatology: Evaluation, tmp_path: Path
) -> None:
    plan = table("deepar", seeds=(1,), seconds=10.0).plan()
    config = json.loads(json.dumps(plan.cells[0].description.config))
    config["training"] |= {"epochs": 5, "batch_size": 64}
    row = replace(climatology.row, model="deepar", variant="short", config=config, seed=1)
    write_result(row, climatology.sidecar, tmp_path / "results")
    for seconds, state in ((10.0, "done"), (None, "to do")):
        plan = table("deepar", seeds=(1,), seconds=seconds).plan()
        assert plan.state(plan.cells[0]) == state
    told = (
        r"deepar\+short-1.json: holds a row with another config .* \(training.epochs 5, not \d+\);"
    )
    with pytest.raises(ResultError, match=told):
        table("deepar+short", seeds=(1,)).plan()


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"models": ["deeepar"]}, UnknownName, "no model 'deeepar'; did you mean deepar"),
        ({"models": ["ets+stael"]}, UnknownName, "no variant 'stael'; did you mean stale"),
        ({"models": ["last-week+stale"]}, UnknownName, "last-week has no variants"),
        ({"grids": ["ieee15"]}, UnknownName, "no grid 'ieee15'; did you mean ieee"),
        ({"engine": "rey"}, UnknownName, "no engine 'rey'; did you mean ray"),
        ({"seeds": ["4x"]}, PowerphaseError, "'4x' is no seed"),
        ({"seeds": []}, PowerphaseError, "--seeds names none"),
        ({"seconds": 0.0}, PowerphaseError, "--seconds 0 leaves no time"),
        ({"limit": nan}, PowerphaseError, "--limit nan leaves no time"),
        ({"models": ["mine.py:All"]}, UnknownName, "'mine.py' is a file.*write mine:All"),
        ({"models": ["./a/mine.py:All"]}, UnknownName, "is a file.*write a.mine:All"),
        ({"models": ["nowhere.at:All"]}, UnknownName, "no module 'nowhere.at' in"),
        ({"models": [f"{TOYS}:Stead"]}, UnknownName, "did you mean Steady"),
        ({"models": [f"{TOYS}:NoForecaster"]}, ForecastError, "give it fit and predict"),
        ({"models": [f"{TOYS}:Needy"]}, ForecastError, "cannot be made .* a default"),
        ({"models": [f"{TOYS}:Leaves"]}, ForecastError, r"cannot be made \(SystemExit: 0\)"),
        ({"models": [f"{TOYS}:Impostor"]}, ForecastError, "called last-week, as a model of power"),
        ({"models": [f"{TOYS}:Unwritten"]}, ForecastError, "lacks name, config_type, make_netw"),
        ({"models": [f"{TOYS}:Forgetful"]}, ForecastError, "keep it as self.seed"),
        ({"models": [f"{TOYS}:Steady", f"{TOYS}:Louder"]}, ForecastError, "both called steady"),
    ],
)
def test_what_cannot_be_made_is_told_before_anything_begins(
    data: Path, tmp_path: Path, given: dict[str, Any], error: type[Exception], told: str
) -> None:
    places = {"data": data, "out": tmp_path / "results", "runs": tmp_path / "runs"}
    asked = {"grids": ["ieee14"], "models": ["last-week"], **places, **given}
    with pytest.raises(error, match=told):
        Table(**asked).run(BenchDisplay())
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"edition": "opsd"}, "is of edition exact, and opsd is asked for"),
        ({"signals": "synthetic"}, "is of edition exact, and synthetic is asked for"),
        ({"grids": ["ieee14", "ieee30"]}, "ieee30: no finished data set here, .* give --signals"),
    ],
)
def test_two_editions_never_meet(data: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(StoreError, match=told):
        Table(**{"grids": ["ieee14"], "models": ["last-week"], "data": data, **options}).plan()


def test_a_missing_data_set_has_the_fingerprint_that_it_will_have(tmp_path: Path) -> None:
    """Which the committed rows on such a data set have."""
    (cell,) = Table(["activsg500"], ["last-week"], data=tmp_path, out=RESULTS).plan().cells
    assert not cell.data.is_there
    row = RESULTS / "powerphase-day-ahead" / "synthetic" / "activsg500" / "last-week-0.json"
    made = read_result(row)
    assert (cell.data.edition, cell.data.fingerprint) == ("synthetic", made.fingerprint)


def test_a_model_that_forgets_its_seed_is_not_made(data: Path) -> None:
    """Two seeds would have one row, and the second would be written over the first."""
    with pytest.raises(ForecastError, match="takes the seed 7 and tells 0; keep it"):
        entrant(f"{TOYS}:Forgetful").make(Task(data / "ieee14"), 7)


def test_a_user_s_class_may_lie_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_toys.py").write_text(f"from {TOYS} import Plain as Mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # so that the change to the path is undone
    assert entrant("my_toys:Mine").seeds((1, 2)) == (0,)
    (tmp_path / "my_slip.py").write_text("import nothing_of_the_kind\n")
    with pytest.raises(ForecastError, match="needs nothing_of_the_kind"):
        entrant("my_slip:Mine")
    (tmp_path / "my_fault.py").write_text("1 / 0\n")
    with pytest.raises(ForecastError, match=r"my_fault: cannot be imported \(ZeroDivisionError"):
        entrant("my_fault:Mine")
    (tmp_path / "my_end.py").write_text("import sys\nsys.exit()\n")
    with pytest.raises(ForecastError, match=r"my_end: cannot be imported \(SystemExit"):
        entrant("my_end:Mine")
