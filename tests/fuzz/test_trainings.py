"""Damaged trainings: they load and forecast as before, or are rejected in one line."""

import json
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.axes import STEPS_PER_DAY
from powerphase.cli import display
from powerphase.models import ETS, FactorForge
from powerphase.models.framework import HEADER, LOG, RESUME, WEIGHTS, RunFolder
from powerphase.scenarios import Training
from tests.fuzz.harness import CASES, check_cases
from tests.fuzz.mutations import BYTES, JSON, SAFETENSORS, Mutation, edit_json_line
from tests.models.factorforge import World, training_of
from tests.models.toys import ToyModel, wavy_training
from tests.models.typed import scenarios_of


class Stopped(Exception):
    """Stops a training in these tests."""


def stop(now: Any) -> None:
    if now.step == 8:
        raise Stopped


def world_training() -> Training:
    return training_of(World(n_buses=2).states(60, seed=1))


def make_toy(run: Path) -> Training:
    training = wavy_training()
    ToyModel(run=run).fit(training)
    return training


def make_factorforge(run: Path) -> Training:
    training = world_training()
    FactorForge(run=run).fit(training)
    return training


def make_ets(run: Path) -> Training:
    steps = np.arange(4 * STEPS_PER_DAY)[:, None]
    training = training_of(1 + np.sin(steps / 15 + np.arange(8)) / 9)
    ETS(run=run, device="cpu").fit(training)
    return training


KINDS_OF_MODEL: dict[Any, Callable[[Path], Training]] = {
    ToyModel: make_toy,
    FactorForge: make_factorforge,
    ETS: make_ets,
}


@pytest.mark.parametrize("kind", KINDS_OF_MODEL)
@pytest.mark.parametrize(
    ("file", "mutations"),
    [(HEADER, (*BYTES, *JSON, *JSON)), (WEIGHTS, (*BYTES, *SAFETENSORS))],
    ids=[HEADER, WEIGHTS],
)
def test_a_training_forecasts_as_before_or_is_rejected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    file: str,
    mutations: Sequence[Mutation],
) -> None:
    run = tmp_path / "sound" / "run"
    context = KINDS_OF_MODEL[kind](run).validation.context(0)
    expected = scenarios_of(kind.load(run), context).values
    monkeypatch.setattr(display.console, "quiet", True)

    def read(damaged: Path) -> None:
        model = kind.load(damaged.parent)
        assert torch.equal(scenarios_of(model, context).values, expected)
        if kind is not ToyModel:  # a user's model has no page
            display.show_run(RunFolder.open(damaged.parent))

    check_cases(tmp_path / "sound", run / file, mutations, read)


def test_a_log_is_read_faithfully_or_rejected(tmp_path: Path) -> None:
    run = tmp_path / "sound" / "run"
    make_toy(run)

    def read(damaged: Path) -> None:
        curve = RunFolder.open(damaged.parent).curve()
        if damaged.exists():
            lines = damaged.read_text().split("\n")[:-1]
            assert curve == [json.loads(line) for line in lines]
        for line in curve:
            assert isfinite(line["validation_crps"])

    check_cases(tmp_path / "sound", run / LOG, (*BYTES, *[edit_json_line] * 8), read)


def test_a_training_continues_to_the_same_end_or_not_at_all(tmp_path: Path) -> None:
    make_toy(tmp_path / "whole")
    expected = RunFolder.open(tmp_path / "whole").best()[0]
    run = tmp_path / "sound" / "run"
    with pytest.raises(Stopped):
        ToyModel(run=run, on_progress=stop).fit(wavy_training())

    def read(damaged: Path) -> None:
        ToyModel(run=damaged.parent).fit(wavy_training())
        weights = RunFolder.open(damaged.parent).best()[0]
        assert all(torch.equal(weights[name], expected[name]) for name in expected)

    mutations = (*BYTES, SAFETENSORS[0], SAFETENSORS[-1])
    check_cases(tmp_path / "sound", run / RESUME, mutations, read, cases=CASES // 4)
