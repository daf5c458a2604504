"""What a source lacks is solved, and what it says is checked by the power balance."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from powerphase.dataset import Store, certificate_facts, verify
from powerphase.errors import RecordError
from powerphase.grid import Grid, admittance_matrix, consumption_mva
from powerphase.importing import import_states
from tests.conftest import Problem
from tests.importing.conftest import long_table

SMALL = ("ieee14", "ieee24", "ieee30", "newengland39", "ieee57", "nordic60", "pegase89", "ieee118")


def without(table: pd.DataFrame, grid: Grid, subset: str) -> pd.DataFrame:
    """The table with only what the subset names."""
    kind = pd.Series(grid.bus_type, index=grid.bus_id).reindex(table.bus).to_numpy()
    if subset == "V, theta":
        return table.drop(columns=["p_mw", "q_mvar"])
    table = table.drop(columns="va_rad")
    return table.assign(
        p_mw=table.p_mw.where(kind != 3),
        q_mvar=table.q_mvar.where(kind == 1),
        vm_pu=table.vm_pu.where(kind != 1),
    )


@pytest.mark.parametrize("subset", ["V, theta", "what the types of buses need"])
def test_the_rest_is_solved(
    subset: str, original: Store, table: pd.DataFrame, tmp_path: Path
) -> None:
    store = import_states(without(table, original.grid, subset), tmp_path / "store", grid="ieee14")
    scale = np.array([100.0, 100.0, 1.0, 1.0])
    np.testing.assert_allclose(store.read() / scale, original.read() / scale, atol=3e-6)
    assert store.kind == "simulated" or subset == "V, theta"
    solved = {"V, theta": ["P", "Q"]}.get(subset, ["P", "Q", "V", "theta"])
    assert store.manifest.recipe["solved"] == solved
    observed = store.read_observed(slice(0, 50), slice(0, 56))
    assert observed is not None
    assert observed.all()


def test_set_points_may_vary(original: Store, states: np.ndarray, tmp_path: Path) -> None:
    """Oracle: states made from varying V and θ by the AC equations."""
    grid, random = original.grid, np.random.default_rng(1)
    changed = states[: 9 * 96].copy()
    changed[..., 2] += 0.002 * random.standard_normal(changed.shape[:2])
    voltage = changed[..., 2] * np.exp(1j * changed[..., 3])
    power = consumption_mva(admittance_matrix(grid), grid.base_mva, voltage)
    changed[..., 0], changed[..., 1] = power.real, power.imag
    table = without(long_table(original, changed), grid, "types")
    store = import_states(table, tmp_path / "store", grid="ieee14", suspects="keep")
    np.testing.assert_allclose(store.read(variable="V"), changed[..., 2], atol=1e-6)
    np.testing.assert_allclose(store.read(variable="theta"), changed[..., 3], atol=1e-6)


def test_a_spike_that_the_power_balance_confirms_is_no_bad_sensor(
    original: Store, states: np.ndarray, tmp_path: Path
) -> None:
    grid, values = original.grid, states[: 9 * 96].copy()
    values[500, 3, 3] += 0.3
    voltage = values[500:501, :, 2] * np.exp(1j * values[500:501, :, 3])
    power = consumption_mva(admittance_matrix(grid), grid.base_mva, voltage)
    values[500, :, 0], values[500, :, 1] = power[0].real, power[0].imag
    table = long_table(original, values)
    store = import_states(table, tmp_path / "event", grid="ieee14", suspects="refuse")
    assert store.kind == "simulated"
    values[600, 3, 0] += values[500, 3, 0] - values[499, 3, 0]  # as large, but V and θ do not move
    store = import_states(long_table(original, values), tmp_path / "sensor", grid="ieee14")
    observed = store.read_observed(slice(0, len(values)), slice(0, 56))
    assert observed is not None
    assert np.argwhere(~observed).tolist() == [[600, 12]]


def test_a_record_that_stopped_is_stuck_although_it_satisfies_the_balance(
    original: Store, states: np.ndarray, tmp_path: Path
) -> None:
    values, stop = states[: 21 * 96].copy(), slice(960, 960 + 4 * 96)
    values[stop] = values[960]
    store = import_states(long_table(original, values), tmp_path / "stopped", grid="ieee14")
    observed = store.read_observed(slice(0, len(values)), slice(0, 56))
    assert observed is not None
    moving = (np.diff(states[: len(values)], axis=0) != 0).mean(axis=0).reshape(-1) > 0.9
    assert moving.any()
    repeats = observed[stop][1:, moving]
    assert not repeats.any()


def test_a_load_that_does_not_move_is_no_bad_sensor_if_the_balance_confirms_it(
    original: Store, states: np.ndarray, tmp_path: Path
) -> None:
    """Oracle: voltages by the power flow, for one load at a constant power."""
    values, grid = states[: 21 * 96].copy(), original.grid
    values[960 : 960 + 4 * 96, 13, :2] = values[960, 13, :2]
    table = without(long_table(original, values), grid, "types")
    solved = import_states(table, tmp_path / "a", grid="ieee14", suspects="keep")
    table = long_table(original, solved.read().astype(np.float64))
    store = import_states(table, tmp_path / "b", grid="ieee14", suspects="refuse")
    assert store.kind == "simulated"


def test_a_solved_value_is_observed_if_all_behind_it_is(
    original: Store, table: pd.DataFrame, tmp_path: Path
) -> None:
    """Of a gap in P only V and θ of that step are unknown; of one in V only its neighbours."""
    source = without(table, original.grid, "types")
    source.loc[(source.bus == 9) & (source.time == "2015-01-09T07:15Z"), "p_mw"] = np.nan
    store = import_states(source, tmp_path / "a", grid="ieee14")
    step = int(np.flatnonzero(store.time == np.datetime64("2015-01-09T07:15"))[0])
    observed = store.read_observed(slice(0, store.manifest.n_steps), slice(0, 56))
    assert observed is not None
    assert observed[np.arange(len(observed)) != step].all()
    at = observed[step].reshape(14, 4)
    assert not at[:, 3].any()
    assert at[8, 1]
    assert not at[8, 0]
    source = table.drop(columns=["p_mw", "q_mvar"])
    source.loc[(source.bus == 14) & (source.time == "2015-01-09T07:15Z"), "vm_pu"] = np.nan
    store = import_states(source, tmp_path / "b", grid="ieee14")
    observed = store.read_observed(slice(step, step + 1), slice(0, 56))
    assert observed is not None
    hidden = np.flatnonzero(~observed[0].reshape(14, 4)[:, 0]) + 1
    np.testing.assert_array_equal(hidden, [9, 13, 14])  # 14 and the buses next to it


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("has_angles", [True, False])
def test_a_wrong_sign_is_found_on_every_small_grid(
    name: str,
    has_angles: bool,
    problem_of: Callable[[str], Problem],
    some_steps: np.ndarray,
    tmp_path: Path,
) -> None:
    problem = problem_of(name)
    grid = problem.grid
    steps = np.sort(some_steps)
    p_mw, q_mvar = (
        np.concatenate(parts)
        for parts in zip(
            *(problem.injections.steps(int(k), int(k) + 1) for k in steps), strict=True
        )
    )
    voltage = problem.flow.solve(p_mw, q_mvar).voltage
    power = consumption_mva(problem.flow.ybus, grid.base_mva, voltage)
    days = np.arange(9 * 24) % len(steps)
    arrays = {"p_mw": -power.real, "q_mvar": power.imag, "vm_pu": np.abs(voltage)}
    if has_angles:
        arrays["va_rad"] = np.angle(voltage)
    dataset = xr.Dataset(
        {key: (("time", "bus"), values[days]) for key, values in arrays.items()},
        coords={
            "time": pd.date_range("2016", periods=len(days), freq="1h"),
            "bus": grid.bus_id,
        },
    )
    with pytest.raises(RecordError, match="P has the opposite sign"):
        import_states(dataset, tmp_path / "store", grid=grid, mapping={"zone": "UTC"})


def test_measured_states_have_a_residual_and_the_worst_bus_is_named(
    original: Store, states: np.ndarray, tmp_path: Path
) -> None:
    random = np.random.default_rng(2)
    noisy = states.copy()
    noisy[..., 0] += 0.01 * random.standard_normal(noisy.shape[:2])
    noisy[400, 5, 0] += 3.0
    table = long_table(original, noisy)
    store = import_states(table, tmp_path / "store", grid="ieee14", suspects="keep")
    certificate = verify(store.path)
    assert (store.kind, certificate.kind, certificate.valid) == ("measured", "measured", True)
    worst = certificate.residuals[0]
    assert worst.bus == 6
    assert worst.p_mw[1.0] == pytest.approx(3.0, abs=0.1)
    assert worst.p_mw[0.5] == pytest.approx(0.0067, rel=0.2)  # the median of |noise|
    assert worst.largest_time == str(store.time[400].astype("datetime64[m]"))
    assert any("bus 6" in text for _, text in certificate_facts(certificate))
    with pytest.raises(RecordError, match="AC equations"):
        import_states(table, tmp_path / "other", grid="ieee14", kind="simulated")
