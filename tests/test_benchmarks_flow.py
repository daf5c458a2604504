"""The forms that the flow benchmark compares, and the page's agreement with the measurements."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.flow import FORMS, NOISY, VOLTAGES, Budget, Evaluator
from powerphase.axes import KINDS
from powerphase.grid import CATALOG
from powerphase.models.flows import TempFlowNetwork
from tests.models.recurrent.toys import CONTEXT, HORIZON, training_of, waves

ROOT = Path(__file__).parents[1]
GRIDS = json.loads((ROOT / "benchmarks" / "measured" / "flow.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "tempflow.md").read_text(encoding="utf-8")

each_grid = pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid["grid"])


def grid_with_constant_channels() -> np.ndarray:
    values = waves()
    values[:, 1], values[:, 2] = 0.0, 1.05
    return values


def network_of(form: str) -> TempFlowNetwork:
    kind, config = FORMS[form]
    return kind(replace(config, lags=(1, 2, 5)), 8, CONTEXT, HORIZON)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_standardises_or_adds_noise_as_its_name_says(form: str) -> None:
    batches = training_of(grid_with_constant_channels()).batches(4, 0)
    network, default = network_of(form), network_of("both")
    network.prepare(batches)
    default.prepare(batches)
    standardises = form in ("standardised only", "both")
    assert torch.equal(network.flow.width, default.flow.width) == standardises
    assert torch.equal(network.flow.centre, default.flow.centre) == standardises
    assert network.config.noise == (NOISY.noise if form in ("noise only", "both") else 0)


@pytest.mark.parametrize("kind", range(KINDS))
def test_squares_are_attributed_to_their_channels(kind: int) -> None:
    evaluator = Evaluator(training_of(grid_with_constant_channels()), Budget())
    assert evaluator.constant.tolist() == [False, True, True, *[False] * 5]
    gammas = torch.zeros(8)
    gammas[kind::KINDS] = 10
    network = network_of("both")
    last: Any = network.flow.couplings[-1]
    last.norm_moving.log_gamma.data, last.norm_still.log_gamma.data = gammas[::2], gammas[1::2]
    share = evaluator.square_shares(network)["squares_voltage"]
    assert share > 0.99 if kind == VOLTAGES.start else share < 0.01


def number(value: float) -> str:
    """With one decimal, or with two significant digits from 100 on."""
    text = f"{value:.1f}" if abs(value) < 100 else f"{float(f'{value:.2g}'):,.0f}"
    return text.replace("-0.0", "0.0").replace("-", "−")


@each_grid
def test_the_tables_of_the_page_show_the_measurements(grid: dict[str, Any]) -> None:
    title = CATALOG[grid["grid"]].title
    table = PAGE.split(f"| {title}, TempFlow |")[1].split("\n\n")[0].splitlines()[2:]
    assert table == [
        f"| {form['form']} | {number(form['training'])} | {number(form['validation'])} "
        f"| {number(form['validation_anew'])} | {form['last']['crps']:.4f} "
        f"| {form['kept']['crps']:.4f} (step {form['kept']['step']}) |"
        for form in grid["forms"]
    ]


def form_of(grid: str, name: str) -> dict[str, Any]:
    (forms,) = [entry["forms"] for entry in GRIDS if entry["grid"] == grid]
    (form,) = [form for form in forms if form["form"] == name]
    return dict(form)


def test_the_page_has_the_measured_shares_of_squares() -> None:
    both, reference, standardised = (
        form_of("ieee118", name)["last"] for name in ("both", "reference", "standardised only")
    )
    shares = [
        *(last["squares_voltage"] for last in (both, reference)),
        *(last["squares_still_voltage"] for last in (both, reference, standardised)),
    ]
    for share in shares:
        assert f" {100 * share:.1f} %" in PAGE.replace("\n", " ")


@each_grid
def test_the_page_has_the_measured_numbers_of_a_grid(grid: dict[str, Any]) -> None:
    reference, both = (form_of(grid["grid"], name)["last"] for name in ("reference", "both"))
    before, after = (last["crps_voltage"] for last in (reference, both))
    assert f"from {before:.4f} to {after:.4f}" in PAGE
    assert (before - after) / KINDS > 0.9 * (reference["crps"] - both["crps"])
    assert f"{grid['still_channels']} of {grid['channels']:,}" in PAGE
    budget = grid["budget"]
    assert f"{budget['steps']} steps of {budget['batch_size']} windows" in PAGE.replace("\n", " ")


@pytest.mark.parametrize("grid", [grid["grid"] for grid in GRIDS])
def test_validation_rises_in_the_reference_and_falls_with_both(grid: str) -> None:
    reference, both = form_of(grid, "reference"), form_of(grid, "both")
    assert reference["validations"] == sorted(reference["validations"])
    assert abs(reference["validation_anew"] - reference["training"]) < 0.3
    assert both["validations"] == sorted(both["validations"], reverse=True)
    assert both["validation"] < both["training"]


@pytest.mark.parametrize("name", ["noise only", "standardised only"])
def test_with_only_one_of_both_validation_rises_far_above_training(name: str) -> None:
    form = form_of("ieee118", name)
    assert form["validation"] > form["training"] + 50


def test_standardised_only_forecasts_stay_good_while_validation_explodes() -> None:
    only, both = form_of("ieee118", "standardised only"), form_of("ieee118", "both")
    assert 1 < only["last"]["crps"] / both["last"]["crps"] < 1.1
    assert 0.95 < only["last"]["crps"] / only["kept"]["crps"] < 1.05
    assert only["validations"][-1] > min(only["validations"]) + 1000
