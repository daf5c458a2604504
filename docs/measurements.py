"""The numbers that pages state about costs and trainings: from the files of `benchmarks/measured`.

Every public function here can be called in a template of `docs/templates`, next to those of
`docs/facts.py`.
"""

import json
from functools import cache
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

from powerphase.axes import KINDS
from powerphase.grid import CATALOG
from powerphase.models.framework import BATCH_SIZES
from powerphase.models.powerforge import PowerForgeConfig
from powerphase.records import SCORES
from powerphase.registry import MODELS
from powerphase.report import number as score_cell

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "measured"
PRETRAINED = ROOT / "src" / "powerphase" / "pretrained"
STEP_SIZES = (500, 2383, 9241)
"""The numbers of buses with which training steps of PowerForge were measured."""
LARGE_BATCH = 100
"""The batch size with which TimePrism was measured a second time."""


@cache
def measured(name: str) -> Any:
    """A file of `benchmarks/measured`."""
    return json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))


def reference_day(grid: str, kind: str) -> float:
    """CRPS of PowerForge's reference day alone, for one variable."""
    return float(measured("powerforge_reference_day")["grids"][grid]["crps_by_type"][kind])


def trainings(**chosen: Any) -> list[dict[str, Any]]:
    """The trainings of PowerForge, in the order of grids, variants and seeds."""
    runs: list[dict[str, Any]] = measured("powerforge_trainings")["trainings"]
    return [t for t in runs if all(t[name] == value for name, value in chosen.items())]


def training_seconds(grid: str) -> list[float]:
    """How long PowerForge was trained on a grid, with each seed."""
    return [float(training["train_s"]) for training in trainings(grid=grid, variant=None)]


def training_steps_ms(**chosen: Any) -> list[float]:
    """The mean step of some trainings, without the first epoch, which compiles or loads."""
    batches = PowerForgeConfig().training.batches_per_epoch
    return [
        1e3 * (t["train_s"] - t["first_epoch_s"]) / ((t["epochs"] - 1) * batches)
        for t in trainings(**chosen)
    ]


def first_epochs_s(grid: str) -> list[float]:
    """How long the first epoch of PowerForge took on a grid, with each seed."""
    return [float(training["first_epoch_s"]) for training in trainings(grid=grid, variant=None)]


def batch_size(grid: str) -> int:
    """The paper's batch size of PowerForge."""
    return BATCH_SIZES[grid]


def penalised_trainings() -> list[dict[str, Any]]:
    """The trainings with the width penalty."""
    return [training for training in trainings() if training["first_epoch"]["width"]]


def free_range() -> float:
    """The bound of a voltage's deviation [p.u.] after the training without penalties."""
    (training,) = trainings(variant="no-quantile-regularisation")
    return float(training["voltage_range"])


def width_over_pinball() -> list[float]:
    """The width penalty over the pinball loss in the first epoch of each training."""
    firsts = [t["first_epoch"] for t in penalised_trainings() if t["variant"] != "no-anchor"]
    return [first["width"] / first["pinball"] for first in firsts]


def halvings() -> list[int]:
    """How often each training halved its learning rate."""
    return [len(training["halved_before_epochs"]) for training in trainings()]


def shipped_gradient_norms() -> list[float]:
    """The mean norm of the gradient in each epoch of the shipped training, before clipping."""
    (log,) = PRETRAINED.glob("powerforge-*/log.jsonl")
    return [json.loads(line)["gradient_norm"] for line in log.read_text().splitlines()]


def step_row(form: str, n_buses: int, report: str = "steps") -> dict[str, Any]:
    """A training step of PowerForge in one form, from one of the files of steps."""
    steps: list[dict[str, Any]] = measured(f"powerforge_{report}")["rows"]
    return next(row for row in steps if (row["form"], row["n_buses"]) == (form, n_buses))


def fast_steps(report: str = "steps") -> list[dict[str, Any]]:
    """The fast training step at each size."""
    return [step_row("fast", n_buses, report) for n_buses in STEP_SIZES]


def step(form: str, n_buses: int, decimals: int = 1, report: str = "steps") -> str:
    """Time and memory of a training step of PowerForge as the cell of a table."""
    row = step_row(form, n_buses, report)
    return f"{row['ms']:.{decimals}f} ms, {row['peak_gib']:.1f} GiB"


def step_ratios(form: str = "fast", report: str = "steps") -> list[float]:
    """At each size, how many times as fast a step is as the straightforward version."""
    return [float(step_row(form, n_buses, report)["ratio"]) for n_buses in STEP_SIZES]


def ceiling(unit: str) -> float:
    """The measured rate of a large copy, `bytes_per_s`, or of a large product, `flops_per_s`."""
    return float(measured("powerforge_steps")["ceilings"][unit])


def floors_ms(unit: str) -> list[float]:
    """At each size, the least time of a step's `bytes` or `flops`."""
    rate = ceiling(f"{unit}_per_s")
    return [1e3 * row[f"least_{unit}"] / rate for row in fast_steps()]


def saved_by_bfloat16() -> list[float]:
    """At each size, how much less time a step takes in bfloat16, as a share."""
    both = zip(fast_steps("steps_bfloat16"), fast_steps(), strict=True)
    return [1 - half["ms"] / full["ms"] for half, full in both]


def scaling(n_buses: int) -> dict[str, Any]:
    """A training step of PowerForge with the batch of PEGASE 9241."""
    sizes: list[dict[str, Any]] = measured("powerforge_scaling")["rows"]
    return next(row for row in sizes if row["n_buses"] == n_buses)


def ns_per_channel(n_buses: int) -> float:
    """The time of a step for each channel of a window [ns]."""
    row = scaling(n_buses)
    return 1e6 * float(row["ms"]) / (row["batch"] * KINDS * n_buses)


def gib_beyond_record(n_buses: int) -> float:
    """Peak memory of a step beyond the training record."""
    row = scaling(n_buses)
    return float(row["peak_gib"] - row["held_gib"])


def kib_per_channel(least_buses: int) -> list[float]:
    """The same for each channel of a window [KiB], at every size from this one on."""
    rows = [r for r in measured("powerforge_scaling")["rows"] if r["n_buses"] >= least_buses]
    channels = [row["batch"] * KINDS * row["n_buses"] for row in rows]
    memory = [gib_beyond_record(row["n_buses"]) for row in rows]
    return [2**20 * gib / n for gib, n in zip(memory, channels, strict=True)]


def inference() -> dict[str, Any]:
    """Ten forecasts of PEGASE 9241."""
    (row,) = measured("powerforge_inference")["rows"]
    return dict(row)


def networks() -> list[dict[str, Any]]:
    """The costs of the baselines' networks, by model, channels and batch size."""
    rows: list[dict[str, Any]] = measured("networks")
    return rows


def network_growth() -> dict[str, dict[str, float]]:
    """How a network's time grows from ACTIVSg 500 to Polish 2383: of a step, and of a forecast.

    The step is that of a window, except with `subsampled`, where the number of rows is the same
    for each batch.
    """
    growth = {}
    for model in sorted({row["model"] for row in networks()}):
        of_model = [r for r in networks() if r["model"] == model and r["batch_size"] != LARGE_BATCH]
        small, large = sorted(of_model, key=itemgetter("channels"))
        share = 1 if "subsampled" in model else small["batch_size"] / large["batch_size"]
        growth[model] = {
            "step": share * large["step_ms"] / small["step_ms"],
            "forecast": large["forecast_s"] / small["forecast_s"],
        }
    return growth


RANKED_SCORES = {"loading_crps": ".5f", "overload_brier": ".6f", "variogram_theta": ".2e"}
"""Scores of solved scenarios, and how many digits the table has."""


RISK_GRIDS = {"ieee57": "IEEE 57", "activsg500": "ACTIVSg 500, own set-points"}
"""The data sets on which forecasts of risk were compared with what happened, with their titles."""
RISK_FORMS = {
    "fan": "FactorForge, fan of 16",
    "ranked-100": "FactorForge, 100 ranked",
    "climatology": "climatology, as scored",
    "climatology-schaake-16": "climatology, coupled to 16 past days",
}
"""The forms of scenarios whose forecasts were compared on test days."""
CHOICES = (
    *("fan", "draws-100", "ranked-16", "ranked-50", "ranked-100", "ranked-200"),
    *("climatology", "climatology-schaake-16", "climatology-schaake-50"),
)
"""The forms that were compared on validation days."""


def calibrated(grid: str, form: str = "ranked-100", split: str = "test") -> dict[str, Any]:
    """What a model said of the risk of days in one form, and what happened; {} if not measured."""
    rows: list[dict[str, Any]] = measured("calibration")["rows"]
    key = (grid, form, split)
    return next((r for r in rows if (r["grid"], r["form"], r["split"]) == key), {})


def risk_lines() -> list[str]:
    """The lines of a table: scores of the risk of test days; a dash is not measured yet."""
    return [
        _risk_line(title, words, calibrated(grid, form))
        for (grid, title), (form, words) in product(RISK_GRIDS.items(), RISK_FORMS.items())
    ]


def _risk_line(title: str, words: str, row: dict[str, Any]) -> str:
    if not row:
        return f"| {title} | {words} | – | – | – | – | – |"
    parts = (row["brier"][n] for n in ("score", "reliability", "resolution", "uncertainty"))
    cells = (f"{title}, {row['counted']} buses", words, *(f"{x:.4f}" for x in parts))
    return f"| {' | '.join(cells)} | {row['hours_crps']:.3f} |"


def choice_lines() -> list[str]:
    """The lines of a table: the Brier score of the risk of validation days by form."""
    lines = []
    for grid, title in RISK_GRIDS.items():
        rows = [calibrated(grid, form, "validation") for form in CHOICES]
        cells = [f"{row['brier']['score']:.4f}" if row else "–" for row in rows]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def mean_risks() -> list[str]:
    """What joint scenarios and the fan say of a day on average, and what happened, by grid."""
    sentences = []
    for grid, title in RISK_GRIDS.items():
        if joint := calibrated(grid):
            fan = calibrated(grid, "fan")["mean"]["chance"]
            said, happened = joint["mean"]["chance"], joint["mean"]["violated"]
            sentences.append(
                f"On {title}, the joint scenarios say {said:.1%} on average and the fan "
                f"{fan:.1%}, where {happened:.1%} happened.".replace("%", " %")
            )
    return sentences


def calibration_lines(grid: str) -> list[str]:
    """The lines of a table: the bins of the chance, for the fan and for joint scenarios."""
    forms = [calibrated(grid, form)["chance_bins"] for form in ("fan", "ranked-100")]
    both = [{part["low"]: part for part in bins} for bins in forms]
    lines = []
    for low in sorted({*both[0], *both[1]}):
        cells = [f"{100 * low:.0f} to {100 * low + 10:.0f} %"]
        for bins in both:
            part = bins.get(low)
            numbers = (part["cases"], part["said"], part["happened"]) if part else None
            cells += (
                [f"{numbers[0]:,}", *(f"{x:.0%}" for x in numbers[1:])] if numbers else ["–"] * 3
            )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def line_states() -> dict[str, Any]:
    """What was read of lines in one of the forms; the number of lines is that of all."""
    rows: list[dict[str, Any]] = measured("line_states")["rows"]
    return rows[0]


def line_readings() -> list[str]:
    """The lines of a table: scores of loadings as forecast and after the power flow was solved."""
    return [_line_reading(row) for row in measured("line_states")["rows"]]


def _line_reading(row: dict[str, Any]) -> str:
    readings = (row["forecast"], row["solved"])
    cells = (
        row["form"],
        str(row["scenarios"]),
        {True: "yes", False: "no"}[row["joint"]],
        *(f"{reading['loading_crps']:.4f}" for reading in readings),
        *(f"{reading['overload_brier']:.5f}" for reading in readings),
        f"{row['day']['brier']:.4f}",
    )
    return f"| {' | '.join(cells)} |"


def ranked_tables() -> list[tuple[str, list[str]]]:
    """For each grid its title and the lines of a table of scenarios before and after solving."""
    rows: list[dict[str, Any]] = measured("ranked")["rows"]
    grids = dict.fromkeys(row["grid"] for row in rows)
    return [
        (CATALOG[grid].title, [_ranked_line(row) for row in rows if row["grid"] == grid])
        for grid in grids
    ]


def _ranked_line(row: dict[str, Any]) -> str:
    forecast, solved = row["forecast"], row["solved"]
    cells = (
        row["form"],
        *(f"{part[score]:.5f}" for part in (forecast, solved) for score in ("crps", "energy")),
        *(f"{solved[score]:{form}}" for score, form in RANKED_SCORES.items()),
        str(row["backed_off_or_unsolved"]),
    )
    return f"| {' | '.join(cells)} |"


def solved_over_fan(form: str) -> list[float]:
    """By how much the CRPS of solved scenarios is above that of the fan as forecast, by grid."""
    rows: list[dict[str, Any]] = measured("ranked")["rows"]
    fans = {row["grid"]: row["forecast"]["crps"] for row in rows if row["form"] == "fan, 16"}
    return [row["solved"]["crps"] / fans[row["grid"]] - 1 for row in rows if row["form"] == form]


FORECAST_SCORES = ("crps", "energy", "distortion", "loading_crps", "overload_brier")
SOLVED_SCORES = (*FORECAST_SCORES, "variogram_theta")


def coupling() -> dict[str, Any]:
    """What coupling changes on one grid."""
    return dict(measured("coupling"))


def coupling_titles(reading: str) -> str:
    """The heading of a table of coupled forecasts, `forecast` or `solved`."""
    titles = [SCORES[score].title for score in _coupling_scores(reading)]
    return f"| forecaster | joint | {' | '.join(titles)} |\n|---|---|{'--:|' * len(titles)}"


def coupling_lines(reading: str) -> list[str]:
    """The lines of the same table."""
    lines = []
    for row in coupling()["rows"]:
        scores = [score_cell(row[reading][score]) for score in _coupling_scores(reading)]
        cells = (row["forecaster"], "yes" if row["joint"] else "no", *scores)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def solved_over_forecast(forecaster: str, score: str = "crps") -> float:
    """By which factor solving raises a score of one of these forecasts."""
    (row,) = (row for row in coupling()["rows"] if row["forecaster"] == forecaster)
    return float(row["solved"][score] / row["forecast"][score])


def _coupling_scores(reading: str) -> tuple[str, ...]:
    return {"forecast": FORECAST_SCORES, "solved": SOLVED_SCORES}[reading]


def first_looks(*pairs: tuple[str, str | float]) -> list[dict[str, Any]]:
    """How often voltages leave the band, for some grids and set-points."""
    rows: dict[tuple[str, Any], dict[str, Any]] = {
        (row["grid"], row["setpoint"]): row for row in measured("first_look")["rows"]
    }
    return [{**rows[pair], "title": CATALOG[pair[0]].title} for pair in pairs]


def truth_necv(grid: str, network: str = "case file", setpoint: str | float = 1.02) -> float:
    """NECV of what happened [p.u.], for a form of the network and set-points."""
    facts = {"grid": grid, "network": network, "setpoint": setpoint}
    (row,) = (row for row in measured("truth_necv")["rows"] if facts.items() <= row.items())
    return float(row["necv"])


def joint_part(model: str, is_small: bool, step: int, quantity: str) -> list[float]:
    """A quantity of `likelihood.json` after so many steps, of each seed."""
    curves = [
        row["curve"]
        for row in measured("likelihood")["rows"]
        if (row["model"], row["cured"]) == (model, is_small)
    ]
    return [at[quantity] for curve in curves for at in curve if at["step"] == step]


def trial_lines() -> list[str]:
    """One line of a table for each trial of settings, by model."""
    return [_trial_line(trial) for trial in measured("trials")]


def _trial_line(trial: dict[str, Any]) -> str:
    settings = {**trial["options"], **trial["options"].get("training", {})}
    settings.pop("training", None)
    changes = ", ".join(f"`{name}` {value}" for name, value in settings.items())
    slopes = trial["slope"].values()
    cells = (
        MODELS[trial["model"]].title,
        changes or "none",
        f"{trial['steps']:,}",
        f"{1e3 * trial['crps']:.2f}",
        f"{min(slopes):.2f} to {max(slopes):.2f}",
    )
    return f"| {' | '.join(cells)} |"


def reduction() -> dict[str, Any]:
    """What it costs to keep a few of many scenarios."""
    return dict(measured("reduction"))


def reduction_row(method: str, space: str, count: int) -> dict[str, Any]:
    """The costs of one choice."""
    key = {"method": method, "space": space, "to": count}
    (row,) = (row for row in reduction()["rows"] if key.items() <= row.items())
    return dict(row)


def reduction_titles() -> str:
    """The heading of the table of choices."""
    cells = ("scenarios", "method", "by", "Kantorovich", "energy distance", "energy score")
    return f"| {' | '.join(cells)} |\n|--:|---|---|--:|--:|--:|"


def reduction_lines() -> list[str]:
    """The lines of the same table, without that of all scenarios."""
    return [
        f"| {row['to']} | {row['method']} | {row['space'] or '–'} | {row['kantorovich']:.3f} | "
        f"{row['energy_distance']:.6f} | {row['energy_score']:.5f} |"
        for row in reduction()["rows"]
        if row["method"] != "all"
    ]


def saved(method: str, space: str, count: int) -> float:
    """By how much the energy distance of a choice is below that of random ones."""
    kept, random = reduction_row(method, space, count), reduction_row("random", "", count)
    return float(1 - kept["energy_distance"] / random["energy_distance"])


def added_score(method: str, space: str, count: int) -> float:
    """By which share of it a choice raises the energy score of all scenarios."""
    everything = reduction_row("all", "", reduction()["scenarios"])["energy_score"]
    return float(reduction_row(method, space, count)["energy_score"] / everything - 1)


def many_scenarios() -> dict[str, Any]:
    """Time and memory of a thousand scenarios of a large grid."""
    return dict(measured("many_scenarios"))


def many_lines() -> list[str]:
    """The lines of the table of its stages."""
    return [
        f"| {row['stage']} | {'–' if row['stage'] == 'fit' else row['coupling']} | "
        f"{row['seconds']:.0f} | {row['cpu_seconds']:.0f} | {row['peak_gib']:.1f} GiB |"
        for row in many_scenarios()["rows"]
    ]


def solved_days() -> dict[str, Any]:
    """How long a day of scenarios takes, forecast and solved."""
    return dict(measured("physical"))


def solved_day_lines() -> list[str]:
    """The lines of the table of grids."""
    lines = []
    for row in solved_days()["rows"]:
        parts = (f"{row[part]['cpu_s']:.2f}" for part in ("forecast", "setup", "solution"))
        total, reference = row["total"], row["reference"]
        full_s = reference["cpu_s"] / reference["steps"] * row["steps"]
        cells = (*parts, f"{total['cpu_s']:.2f}", f"{total['wall_s']:.1f}", f"{full_s:.1f}")
        lines.append(
            f"| {CATALOG[row['grid']].title} | {' | '.join(cells)} | {row['ratio']:.1f}x |"
        )
    return lines


ANCHOR_SCORES = ("crps", "energy", "distortion", "coverage_80", "loading_crps", "overload_brier")
"""The scores of the anchors' trials."""


def anchor_trials(windows: str = "validation", grid: str = "activsg500") -> list[str]:
    """The lines of a table: every trial of the anchors on these windows of a grid."""
    key = (grid, windows)
    trials = [line for line in measured("anchors") if (line["grid"], line["windows"]) == key]
    return [_anchor_trial(line) for line in trials]


def anchor_costs() -> list[str]:
    """The lines of a table: how long the anchors' fits and forecasts of a window took."""
    rows = [line for line in measured("anchors") if line["fit_s"] is not None]
    cells = [
        (CATALOG[r["grid"]].title, f"`{r['model']}`", f"{r['fit_s']:.0f}", f"{r['predict_s']:.1f}")
        for r in rows
        if MODELS[r["model"]].page == "anchors.md"
    ]
    return [f"| {' | '.join(row)} |" for row in cells]


def _anchor_trial(line: dict[str, Any]) -> str:
    changes = ", ".join(f"{name} {value}" for name, value in line["options"].items())
    scores = (score_cell(line["scores"][score]) for score in ANCHOR_SCORES)
    cells = [f"`{line['model']}`", changes or "the defaults", *scores]
    return f"| {' | '.join(cells)} |"
