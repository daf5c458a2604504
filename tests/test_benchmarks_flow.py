"""What the benchmark of the flow compares, and that the page has what it found."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.flow import FORMS, NOISY, VOLTAGES, Budget, Judge
from powerphase.axes import KINDS
from powerphase.grid import CATALOG
from powerphase.models.flows.tempflow.network import TempFlowNetwork
from tests.models.recurrent.toys import CONTEXT, HORIZON, training_of, waves

ROOT = Path(__file__).parents[1]
GRIDS = json.loads((ROOT / "benchmarks" / "measured" / "flow.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "tempflow.md").read_text(encoding="utf-8")
SECTION = PAGE.split("### Why z is standardised")[1].split("\n## ")[0]
WORDS = " ".join(SECTION.split())
REFERENCE = "the reference's way"


def still_grid() -> np.ndarray:
    values = waves()
    values[:, 1], values[:, 2] = 0.0, 1.05
    return values


def network_of(form: str) -> TempFlowNetwork:
    kind, config = FORMS[form]
    return kind(replace(config, lags=(1, 2, 5)), 8, CONTEXT, HORIZON)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_standardises_or_has_noise_as_its_name_says(form: str) -> None:
    batches = training_of(still_grid()).batches(4, 0)
    network, default = network_of(form), network_of("both")
    network.prepare(batches)
    default.prepare(batches)
    standardises = form in ("standardised alone", "both")
    assert torch.equal(network.flow.width, default.flow.width) == standardises
    assert torch.equal(network.flow.centre, default.flow.centre) == standardises
    assert network.config.noise == (NOISY.noise if form in ("noise alone", "both") else 0)


@pytest.mark.parametrize("kind", range(KINDS))
def test_squares_are_given_to_their_channels(kind: int) -> None:
    judge, network = Judge(training_of(still_grid()), Budget()), network_of("both")
    assert judge.still.tolist() == [False, True, True, *[False] * 5]
    gammas = torch.zeros(8)
    gammas[kind::KINDS] = 10
    last: Any = network.flow.couplings[-1]
    last.norm_moving.log_gamma.data, last.norm_still.log_gamma.data = gammas[::2], gammas[1::2]
    share = judge.square_shares(network)["squares_voltage"]
    assert share > 0.99 if kind == VOLTAGES.start else share < 0.01


def number(value: float) -> str:
    """With one decimal, or two digits where it is large."""
    text = f"{value:.1f}" if abs(value) < 100 else f"{float(f'{value:.2g}'):,.0f}"
    return text.replace("-0.0", "0.0").replace("-", "−")


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid["grid"])
def test_tables_are_those_that_were_measured(grid: dict[str, Any]) -> None:
    title = CATALOG[grid["grid"]].title
    table = SECTION.split(f"| {title}, TempFlow |")[1].split("\n\n")[0].splitlines()[2:]
    assert table == [
        f"| {form['form']} | {number(form['training'])} | {number(form['validation'])} "
        f"| {number(form['validation_anew'])} | {form['last']['crps']:.4f} "
        f"| {form['kept']['crps']:.4f} (step {form['kept']['step']}) |"
        for form in grid["forms"]
    ]


def form_of(grid: str, name: str) -> dict[str, Any]:
    (forms,) = [one["forms"] for one in GRIDS if one["grid"] == grid]
    (found,) = [form for form in forms if form["form"] == name]
    return dict(found)


def test_what_is_said_of_squares_was_measured() -> None:
    ours, theirs, alone = (
        form_of("ieee118", name)["last"] for name in ("both", REFERENCE, "standardised alone")
    )
    whole, still, words = "squares_voltage", "squares_still_voltage", WORDS.replace(" %", "%")
    assert f"voltages make up {theirs[whole]:.1%} of" in words
    assert (
        f"never move {theirs[still]:.1%}; with both, {ours[whole]:.1%} and {ours[still]:.1%}."
        in words
    )
    assert f"those that never move are {alone[still]:.1%} of" in words


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid["grid"])
def test_what_is_said_of_a_grid_was_measured(grid: dict[str, Any]) -> None:
    title, budget = CATALOG[grid["grid"]].title, grid["budget"]
    theirs, ours = (form_of(grid["grid"], name)["last"] for name in (REFERENCE, "both"))
    before, after = (last["crps_voltage"] for last in (theirs, ours))
    assert f"from {before:.4f} to {after:.4f} on {title}" in WORDS
    assert (before - after) / KINDS > 0.9 * (theirs["crps"] - ours["crps"])
    assert f"{grid['still_channels']} of {grid['channels']:,} on {title}" in WORDS
    size = rf"{budget['steps']} (steps )?of {budget['batch_size']} windows with {budget['context']}"
    assert re.search(rf"{size} (steps of context )?on {title}", WORDS)


@pytest.mark.parametrize("grid", [grid["grid"] for grid in GRIDS])
def test_validation_rises_in_the_reference_s_way_and_falls_with_both(grid: str) -> None:
    theirs, ours = form_of(grid, REFERENCE), form_of(grid, "both")
    assert theirs["validations"] == sorted(theirs["validations"])
    assert abs(theirs["validation_anew"] - theirs["training"]) < 0.3
    assert ours["validations"] == sorted(ours["validations"], reverse=True)
    assert ours["validation"] < ours["training"]


@pytest.mark.parametrize("name", ["noise alone", "standardised alone"])
def test_with_either_alone_the_validation_rises_far_above_the_training(name: str) -> None:
    form = form_of("ieee118", name)
    assert form["validation"] > form["training"] + 50


def test_standardised_alone_forecasts_stay_good_while_the_validation_explodes() -> None:
    alone, both = form_of("ieee118", "standardised alone"), form_of("ieee118", "both")
    assert 1 < alone["last"]["crps"] / both["last"]["crps"] < 1.1
    assert 0.95 < alone["last"]["crps"] / alone["kept"]["crps"] < 1.05
    assert alone["validations"][-1] > min(alone["validations"]) + 1000
