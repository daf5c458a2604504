"""Reduced forecasts: what is kept, what is written, what it costs, and what is refused."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from powerphase import (
    Context,
    Forecast,
    Reduction,
    Scenarios,
    Store,
    Task,
    Training,
    couple,
    forecast,
    load_forecast,
    physical,
    reduce,
    score,
)
from powerphase.errors import CheckpointError, ForecastError, UnknownName
from powerphase.evaluation import METHODS, is_physical, is_reduced, kantorovich, window_choice
from powerphase.models import Climatology, FactorForge, FactorForgeConfig, LastSevenDays, LastWeek
from tests.command_line import error_of, invoke, run

COUNT = 12


class Joint:
    """Last week plus a few random days, which differ in size by scenario."""

    name, joint_scenarios = "joint", True

    def __init__(self, widths: tuple[int, ...] = (56,), weights: Any = None) -> None:
        self.widths, self.weights = widths, weights

    def fit(self, train: Training) -> None:
        pass

    def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        noise = torch.randn((1, COUNT, 96, 56), generator=torch.Generator().manual_seed(3))
        size = torch.linspace(0.5, 2, COUNT)[:, None, None] ** 2
        values = LastWeek().predict(context).values + 0.01 * size * noise
        weights = torch.full((COUNT,), 1 / COUNT) if self.weights is None else self.weights
        weights = weights[None, :, None].expand(1, COUNT, 56)
        edges = [0, *np.cumsum(self.widths)]
        for first, stop in pairwise(edges):
            channels = slice(int(first), int(stop))
            yield channels, Scenarios(values[..., channels], weights[..., channels])


class OddWeights(Joint):
    """The same with other weights in the last channel of the window that starts at this time."""

    def __init__(self, start: str) -> None:
        super().__init__()
        self.start = np.datetime64(start)

    def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        ((channels, scenarios),) = super().predict(context)
        weights = scenarios.weights.clone()
        if context.future_time[0, 0] == self.start:
            weights[:, :2, -1] += torch.tensor([0.01, -0.01])
        yield channels, Scenarios(scenarios.values, weights)


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, windows=2)


@pytest.fixture(scope="module")
def written(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A forecast of joint scenarios."""
    out = tmp_path_factory.mktemp("reduction") / "full"
    forecast(Joint(), task, out=out)
    return out


@pytest.fixture(scope="module")
def factorforge(task: Task, tmp_path_factory: pytest.TempPathFactory) -> FactorForge:
    config = FactorForgeConfig(coupling="draws", scenarios=COUNT)
    model = FactorForge(config, run=tmp_path_factory.mktemp("runs") / "factorforge")
    model.fit(task.training)
    return model


def windows_of(source: Forecast) -> list[tuple[np.ndarray, np.ndarray]]:
    """Values and weights of each window."""
    parts: dict[int, list[Scenarios]] = {}
    for window, _, scenarios in source.pieces(()):
        parts.setdefault(window, []).append(scenarios)

    def whole(window: list[Scenarios], name: str) -> np.ndarray:
        return torch.cat([getattr(part, name)[0] for part in window], -1).numpy()

    return [(whole(window, "values"), whole(window, "weights")) for window in parts.values()]


@pytest.mark.parametrize("method", METHODS)
def test_kept_scenarios_are_whole_originals_with_one_weight_each(
    written: Path, tmp_path: Path, method: str
) -> None:
    out = tmp_path / "reduced"
    reduced = reduce(written, 4, method=method, out=out)
    assert reduced.reduction is not None
    full = windows_of(load_forecast(written))
    assert len(full) == len(reduced.reduction["kept"]) == 2
    for (values, weights), (all_values, _), kept in zip(
        windows_of(load_forecast(out)), full, reduced.reduction["kept"], strict=True
    ):
        assert len(kept) == 4
        np.testing.assert_array_equal(values, all_values[kept])
        assert weights.sum(0) == pytest.approx(np.ones(56))
        np.testing.assert_array_equal(weights, np.broadcast_to(weights[:, :1], weights.shape))
    assert [path.name for path in tmp_path.iterdir()] == ["reduced"]


def test_distances_are_those_of_rescaled_channels(written: Path) -> None:
    reduced = reduce(written, 3)
    ((values, _), _), _ = windows_of(load_forecast(written)), windows_of(reduced)
    squares = [cdist(x, x) ** 2 for k in range(4) for x in (values[..., k::4].reshape(COUNT, -1),)]
    squares = [square / (square.mean() / 2) for square in squares if square.any()]
    distance, weights = np.sqrt(sum(squares) / 4), np.full(COUNT, 1 / COUNT)
    assert reduced.reduction is not None
    expected = METHODS["energy"].choose(distance, weights, 3)
    assert reduced.reduction["kept"][0] == expected.tolist()
    first = reduce(written, 3)
    next(iter(first.pieces(())))
    assert first.reduction is not None
    assert first.reduction["kantorovich"] == pytest.approx(
        kantorovich(distance, weights, expected), rel=1e-4
    )


@pytest.mark.parametrize("widths", [(56,), (5, 1, 35, 15), (2, 50, 4)])
def test_borders_of_blocks_do_not_matter(
    task: Task, written: Path, widths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reduce(written, 3, task=task)
    monkeypatch.setattr(window_choice, "BLOCK_BYTES", 4 * COUNT * 96 * 3)
    blocks = reduce(forecast(Joint(widths), task), 3, task=task)
    for left, right in zip(windows_of(whole), windows_of(blocks), strict=True):
        np.testing.assert_array_equal(left[0], right[0])
    assert whole.reduction is not None
    assert blocks.reduction is not None
    for name, value in whole.reduction.items():
        if name not in ("kept", "seconds"):
            assert blocks.reduction[name] == pytest.approx(value, rel=1e-4), name


def test_the_stated_energy_scores_are_those_of_rows(task: Task, written: Path) -> None:
    reduced = reduce(written, 4, task=task, method="kmedoids")
    row = score(reduced, task)
    assert row.row.name == "joint+reduced-4-kmedoids"
    assert row.row.config["reduced"] == {"to": 4, "method": "kmedoids", "space": "channels"}
    assert reduced.reduction is not None
    facts = Reduction(**reduced.reduction)
    assert row.scores["energy"] == pytest.approx(facts.energy_score, rel=1e-5)
    full = score(written, task).scores["energy"]
    assert full == pytest.approx(facts.full_energy_score, rel=1e-5)
    assert facts.kantorovich < facts.random_kantorovich
    few = reduce(written, 4)
    assert len(windows_of(few)) == 2
    assert few.name == "joint+reduced-4"
    assert few.reduction is not None
    assert few.reduction["energy_distance"] < facts.random_energy_distance
    assert str(facts)


def test_keeping_all_keeps_the_forecast_at_no_cost(task: Task, written: Path) -> None:
    reduced = reduce(written, COUNT, task=task)
    for left, right in zip(windows_of(reduced), windows_of(load_forecast(written)), strict=True):
        np.testing.assert_array_equal(left[0], right[0])
        np.testing.assert_allclose(left[1], right[1], rtol=1e-6)
    assert reduced.reduction is not None
    facts = Reduction(**reduced.reduction)
    assert facts.kantorovich == 0
    assert facts.energy_distance == pytest.approx(0, abs=1e-12)
    assert facts.energy_score == pytest.approx(facts.full_energy_score)


def test_a_scenario_without_weight_is_kept_last(task: Task) -> None:
    weights = torch.tensor([0.0] * (COUNT - 3) + [0.5, 0.3, 0.2])
    reduced = reduce(forecast(Joint(weights=weights), task), 3)
    for _, kept_weights in windows_of(reduced):
        np.testing.assert_allclose(kept_weights[:, 0], [0.5, 0.3, 0.2], rtol=1e-6)
    assert reduced.reduction is not None
    assert reduced.reduction["kantorovich"] == 0


def test_factors_choose_other_scenarios_than_channels(
    task: Task, factorforge: FactorForge, tmp_path: Path
) -> None:
    source = forecast(factorforge, task, out=tmp_path / "draws")
    reduced = reduce(source, 3, factors=factorforge)
    windows = windows_of(source)
    assert len(windows_of(reduced)) == 2
    assert reduced.description.config["reduced"]["space"]["model"] == "factorforge"
    assert reduced.name.endswith("-reduced-3-factors")
    assert reduced.reduction is not None
    assert factorforge.fitted is not None
    factors = factorforge.fitted.factors
    for (values, _), kept in zip(windows, reduced.reduction["kept"], strict=True):
        series = factors.of(torch.from_numpy(values)).double() * factors.share.sqrt()
        flat = series.flatten(1).numpy()
        expected = METHODS["energy"].choose(cdist(flat, flat), np.full(COUNT, 1 / COUNT), 3)
        assert kept == expected.tolist()


def test_reduced_scenarios_are_solved_like_others(task: Task, written: Path) -> None:
    solved = physical(reduce(written, 3), task)
    assert score(solved, task).row.name == "joint+reduced-3-physical"
    assert is_physical(solved.description.variant)
    assert is_reduced(solved.description.variant)
    full = physical(written, task)
    reduced = reduce(full, 3)
    assert is_physical(reduced.description.variant)
    with pytest.raises(ForecastError, match="physical"):
        physical(reduced, task)


def test_what_is_not_joint_or_reduced_already_is_refused(task: Task, written: Path) -> None:
    class Unknown(LastSevenDays):
        name = "unknown"
        joint_scenarios = None  # type: ignore[assignment]

    for model in (Climatology(), Unknown()):
        with pytest.raises(ForecastError, match="couple"):
            reduce(forecast(model, task), 3)
    assert reduce(forecast(couple(Climatology(), "schaake"), task), 3).name.endswith("-reduced-3")
    with pytest.raises(ForecastError, match="already"):
        reduce(reduce(written, 4), 2)


@pytest.mark.parametrize(
    ("options", "kind", "fact"),
    [
        ({"to": 3, "out": "s3://bucket/few"}, ForecastError, "s3://bucket/few"),
        ({"to": 0}, ForecastError, "0"),
        ({"to": -1}, ForecastError, "-1"),
        ({"to": COUNT + 1}, ForecastError, f"{COUNT + 1} of {COUNT}"),
        ({"to": 3, "method": "kmedoid"}, UnknownName, "kmedoids"),
        ({"to": 3, "factors": FactorForge()}, ForecastError, "fit"),
    ],
)
def test_bad_options_leave_nothing(
    written: Path, tmp_path: Path, options: dict[str, Any], kind: type[Exception], fact: str
) -> None:
    with pytest.raises(kind, match=fact):
        reduce(written, **{"out": tmp_path / "reduced", **options})
    assert not list(tmp_path.iterdir())


def test_one_scenario_cannot_be_reduced(task: Task) -> None:
    with pytest.raises(ForecastError, match="one scenario"):
        list(reduce(forecast(LastWeek(), task), 1).pieces(()))


def test_weights_that_differ_by_channel_leave_nothing(task: Task, tmp_path: Path) -> None:
    with pytest.raises(ForecastError, match="channel 55") as caught:
        reduce(forecast(OddWeights(task.test.start(1)), task), 3, out=tmp_path / "reduced")
    assert (caught.value.window, caught.value.channel) == (1, 55)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_reduction_leaves_nothing(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reduce(written, 3, out=tmp_path / "reduced", on_progress=stop)
    assert not list(tmp_path.iterdir())


def test_an_existing_directory_stays_as_it_is(written: Path, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("keep")
    with pytest.raises(ForecastError, match="exists"):
        reduce(written, 3, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


def test_factors_of_another_record_are_refused(
    written: Path, factorforge: FactorForge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factorforge, "data", {**factorforge.data, "fingerprint": "0" * 64})
    with pytest.raises(ForecastError, match="fingerprint"):
        reduce(written, 3, factors=factorforge)


def test_a_forecast_of_other_windows_has_no_energy_score(written: Path, sixty_days: Store) -> None:
    with pytest.raises(ForecastError):
        reduce(written, 3, task=Task(sixty_days, windows=3))


def test_the_command_writes_a_forecast_and_says_what_it_costs(
    task: Task, written: Path, factorforge: FactorForge, tmp_path: Path
) -> None:
    out, data = tmp_path / "few", task.store.path
    printed = run(
        *("reduce", written, "--to", 3, "--out", out, "--method", "forward"),
        *("--data", data),
    ).output
    header = json.loads((out / "forecast.json").read_text())
    assert (header["scenarios"], header["variant"]) == (3, "reduced-3-forward")
    facts = header["cost"]["reduction"]
    for name in ("kantorovich", "energy_distance", "energy_score", "random_energy_score"):
        assert f"{facts[name]:.4g}" in printed
    assert facts["scenarios"] == COUNT
    assert score(out, task).scores["energy"] == pytest.approx(facts["energy_score"], rel=1e-5)
    by_factors = tmp_path / "by-factors"
    run("reduce", written, "--to", 3, "--out", by_factors, "--factors", factorforge.run)
    assert replace(load_forecast(by_factors).description).variant == "reduced-3-factors"


def test_the_command_refuses_what_is_no_forecast_or_no_factorforge(
    written: Path, tmp_path: Path
) -> None:
    out = tmp_path / "few"
    assert str(tmp_path / "none") in error_of("reduce", tmp_path / "none", "--to", 3, "--out", out)
    result = invoke("reduce", written, "--to", 3, "--out", out, "--factors", tmp_path)
    assert isinstance(result.exception, CheckpointError)
    assert invoke("reduce", written, "--to", 0, "--out", out).exit_code == 2
    assert not out.exists()
