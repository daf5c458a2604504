"""Which cells a bench has, which are done, and which requests it rejects before it starts."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from math import nan
from pathlib import Path
from typing import Any

import pytest

from powerphase import Evaluation, Task, forecast, score
from powerphase.bench import BenchRequest, Plan, make_plan, run_bench
from powerphase.cli.bench_display import BenchDisplay
from powerphase.cli.options import parse_seeds
from powerphase.errors import (
    ForecastError,
    ResultError,
    StoreError,
    TaskError,
    UnknownName,
)
from powerphase.evaluation import resolve_model
from powerphase.grid import PAPER_GRIDS
from powerphase.models import Climatology, ClimatologyConfig, FactorForge
from powerphase.records import read_result, write_result
from powerphase.registry import bench_models
from tests.bench.conftest import TOYS

RESULTS = Path(__file__).parents[2] / "results"
MakePlan = Callable[..., Plan]


@pytest.fixture
def plan_of(data: Path, tmp_path: Path) -> MakePlan:
    def plan(*models: str, **options: Any) -> Plan:
        options |= {"data": data, "out": tmp_path / "results", "runs": tmp_path / "runs"}
        return make_plan(BenchRequest(("ieee14",), models, device="cpu", **options))

    return plan


@pytest.fixture(scope="module")
def climatology(data: Path) -> Evaluation:
    task = Task(data / "ieee14")
    return score(forecast(Climatology(), task, device="cpu"), task, device="cpu")


def stems(plan: Plan) -> list[str]:
    return [cell.key.stem for cell in plan.cells]


def test_only_models_with_a_seed_have_a_cell_for_each(plan_of: MakePlan) -> None:
    plan = plan_of("last-week", "ets+stale", "deepar+short", "oracle", f"{TOYS}:Steady")
    seeds = (22, 42, 3142)
    assert stems(plan) == [
        "last-week-0",
        *(f"ets+stale-{seed}" for seed in seeds),
        *(f"deepar+short-{seed}" for seed in seeds),
        *(f"oracle-{seed}" for seed in seeds),
        *(f"steady-{seed}" for seed in seeds),
    ]
    assert {plan.state(cell) for cell in plan.cells} == {"to do"}


def test_one_model_by_two_names_is_one_cell(plan_of: MakePlan) -> None:
    names = ("ets+season-24+stale", "ets+stale+season-24", "ets+season-24-stale")
    assert stems(plan_of(*names, seeds=(42, 42))) == ["ets+season-24-stale-42"]


def test_by_default_all_models_are_made_on_the_paper_s_grids(plan_of: MakePlan) -> None:
    request = BenchRequest()
    assert (request.grids, request.models) == (PAPER_GRIDS, bench_models())
    assert len(plan_of(*bench_models()).cells) == 5 + 3 * 14


def test_a_training_has_a_folder_by_edition_grid_name_and_seed(
    plan_of: MakePlan, tmp_path: Path
) -> None:
    plan = plan_of("deepar+short", seeds=(7,))
    folder = plan.run_folder(plan.cells[0].key)
    assert folder == tmp_path / "runs/exact/ieee14/deepar+short-7"


def test_a_cell_with_its_row_is_done(
    plan_of: MakePlan, climatology: Evaluation, tmp_path: Path
) -> None:
    climatology.save(tmp_path / "results")
    plan = plan_of("climatology", "last-week")
    assert [plan.state(cell) for cell in plan.cells] == ["done", "to do"]
    assert [cell.key.name for cell in plan.pending] == ["last-week"]


def test_rows_by_other_limits_are_other_cells(
    plan_of: MakePlan, climatology: Evaluation, tmp_path: Path
) -> None:
    climatology.save(tmp_path / "results")
    plan = plan_of("climatology", limits="case")
    (cell,) = plan.cells
    assert plan.state(cell) == "to do"
    assert cell.key.task == "powerphase-day-ahead-case-limits"
    with pytest.raises(UnknownName, match="'d'"):
        plan_of("climatology", rating="d")


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("fingerprint", 64 * "0", "fingerprint"),
        ("config", asdict(ClimatologyConfig(quantiles=17)), "config"),
        ("task_version", 2, "task version"),
        ("model_version", 2, "version of the model's results"),
    ],
)
def test_a_different_row_is_reported_and_kept(
    plan_of: MakePlan, climatology: Evaluation, tmp_path: Path, field: str, value: Any, name: str
) -> None:
    row = replace(climatology.row, **{field: value})
    file = write_result(row, climatology.sidecar, tmp_path / "results")
    before = file.read_bytes()
    with pytest.raises(ResultError, match=f"climatology-0.json: .*{name}"):
        plan_of("climatology")
    assert file.read_bytes() == before


def test_a_row_of_other_windows_belongs_to_another_task(
    plan_of: MakePlan, climatology: Evaluation, tmp_path: Path
) -> None:
    climatology.save(tmp_path / "results")
    plan = plan_of("climatology", windows=3)
    assert plan.cells[0].task == "powerphase-day-ahead-3-windows"
    assert plan.state(plan.cells[0]) == "to do"


def test_trainings_of_other_tasks_are_in_folders_of_their_own(
    plan_of: MakePlan, tmp_path: Path
) -> None:
    paper, noon, all_noons = (
        plan_of("factorforge", seeds=(1,), **options)
        for options in ({}, {"origin": "12:00"}, {"origin": "12:00", "windows": "all"})
    )
    tasks = [plan.cells[0].task for plan in (paper, noon, all_noons)]
    name = "powerphase-day-ahead-origin-1200"
    assert tasks == ["powerphase-day-ahead", name, f"{name}-all"]
    folders = [plan.run_folder(plan.cells[0].key) for plan in (paper, noon, all_noons)]
    run = "exact/ieee14/factorforge-1"
    assert folders == [tmp_path / "runs" / run, *[tmp_path / "runs" / name / run] * 2]


@pytest.mark.parametrize("option", [{"horizon": "7m"}, {"context": "0d"}, {"origin": "end"}])
def test_an_impossible_task_has_no_plan(plan_of: MakePlan, option: dict[str, str]) -> None:
    with pytest.raises(TaskError, match=next(iter(option))):
        plan_of("last-week", **option)


def test_a_corrupted_row_is_named(
    plan_of: MakePlan, climatology: Evaluation, tmp_path: Path
) -> None:
    file = climatology.save(tmp_path / "results")
    file.write_text(file.read_text()[:-10])
    with pytest.raises(ResultError, match=r"climatology-0.json"):
        plan_of("last-week")


def test_a_short_row_is_done_only_if_trainings_may_be_cut(
    plan_of: MakePlan, climatology: Evaluation, tmp_path: Path
) -> None:
    plan = plan_of("deepar", seeds=(1,), seconds=10.0)
    config = json.loads(json.dumps(plan.cells[0].description.config))
    config["training"]["epochs"] = 5
    row = replace(climatology.row, model="deepar", variant="short", config=config, seed=1)
    write_result(row, climatology.sidecar, tmp_path / "results")
    for seconds, state in ((10.0, "done"), (None, "to do")):
        plan = plan_of("deepar", seeds=(1,), seconds=seconds)
        assert plan.state(plan.cells[0]) == state
    with pytest.raises(ResultError, match=r"deepar\+short-1.json: .*training.epochs 5"):
        plan_of("deepar+short", seeds=(1,))


@pytest.mark.parametrize(
    ("options", "error", "fact"),
    [
        ({"models": ["deeepar"]}, UnknownName, "deepar"),
        ({"models": ["ets+stael"]}, UnknownName, "stale"),
        ({"models": ["last-week+stale"]}, UnknownName, "last-week"),
        ({"grids": ["ieee15"]}, UnknownName, "ieee14"),
        ({"engine": "rey"}, UnknownName, "ray"),
        ({"seeds": []}, TaskError, "--seeds"),
        ({"seconds": 0.0}, TaskError, "--seconds"),
        ({"limit": nan}, TaskError, "--limit"),
        ({"models": ["mine.py:All"]}, UnknownName, "mine:All"),
        ({"models": ["./a/mine.py:All"]}, UnknownName, "a.mine:All"),
        ({"models": ["nowhere.at:All"]}, UnknownName, "nowhere.at"),
        ({"models": [f"{TOYS}:Stead"]}, UnknownName, "Steady"),
        ({"models": [f"{TOYS}:NoForecaster"]}, ForecastError, "predict"),
        ({"models": [f"{TOYS}:Needy"]}, ForecastError, "default"),
        ({"models": [f"{TOYS}:Leaves"]}, ForecastError, "SystemExit: 0"),
        ({"models": [f"{TOYS}:Impostor"]}, ForecastError, "last-week"),
        ({"models": [f"{TOYS}:Unwritten"]}, ForecastError, "name, config_type, make_netw"),
        ({"models": [f"{TOYS}:Forgetful"]}, ForecastError, "self.seed"),
        ({"models": [f"{TOYS}:Steady", f"{TOYS}:Louder"]}, ForecastError, "steady"),
    ],
)
def test_an_impossible_request_raises_before_anything_is_written(
    data: Path, tmp_path: Path, options: dict[str, Any], error: type[Exception], fact: str
) -> None:
    paths = {"data": data, "out": tmp_path / "results", "runs": tmp_path / "runs"}
    arguments = {"grids": ["ieee14"], "models": ["last-week"], **paths, **options}
    with pytest.raises(error, match=fact):
        run_bench(BenchRequest(**arguments), BenchDisplay())
    assert not (tmp_path / "results").exists()


def test_the_folder_of_a_training_is_not_a_model_of_a_bench(
    plan_of: MakePlan, data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    FactorForge(run=run).fit(Task(data / "ieee14").training)
    assert resolve_model(str(run)).run == run
    with pytest.raises(TaskError, match=str(run)):
        plan_of(str(run))


def test_seeds_must_be_whole_numbers() -> None:
    assert parse_seeds("22, 42") == [22, 42]
    with pytest.raises(TaskError, match="4x"):
        parse_seeds("22,4x")


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"edition": "opsd"}, "opsd"),
        ({"signals": "synthetic"}, "synthetic"),
        ({"grids": ["ieee14", "ieee30"]}, "ieee30.*--signals"),
    ],
)
def test_two_editions_are_never_mixed(data: Path, options: dict[str, Any], fact: str) -> None:
    arguments = {"grids": ["ieee14"], "models": ["last-week"], "data": data, **options}
    with pytest.raises(StoreError, match=fact):
        make_plan(BenchRequest(**arguments))


def test_a_missing_data_set_has_the_fingerprint_of_the_committed_rows(tmp_path: Path) -> None:
    request = BenchRequest(["activsg500"], ["last-week"], data=tmp_path, out=RESULTS)
    (cell,) = make_plan(request).cells
    assert not cell.data.exists
    row = read_result(RESULTS / cell.key.path)
    assert (cell.data.edition, cell.data.fingerprint) == ("synthetic", row.fingerprint)


def test_a_model_that_forgets_its_seed_is_rejected(data: Path) -> None:
    """Otherwise two seeds would have one row, and the second would overwrite the first."""
    with pytest.raises(ForecastError, match=r"self\.seed"):
        resolve_model(f"{TOYS}:Forgetful").make(Task(data / "ieee14"), 7)


def test_a_user_s_class_may_be_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_toys.py").write_text(f"from {TOYS} import Plain as Mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # so that the change to the path is undone
    assert resolve_model("my_toys:Mine").seeds((1, 2)) == (0,)
    for module, text, fact in (
        ("my_slip", "import nothing_of_the_kind\n", "nothing_of_the_kind"),
        ("my_fault", "1 / 0\n", "my_fault: .*ZeroDivisionError"),
        ("my_end", "import sys\nsys.exit()\n", "my_end: .*SystemExit"),
    ):
        (tmp_path / f"{module}.py").write_text(text)
        with pytest.raises(ForecastError, match=fact):
            resolve_model(f"{module}:Mine")
