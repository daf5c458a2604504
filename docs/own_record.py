"""The numbers of the pages about imported records: damage, SimBench, a day's run."""

from typing import Any

from docs.measurements import measured


def damaged() -> dict[str, Any]:
    """The record that was damaged and imported, and the scores of the models."""
    facts: dict[str, Any] = measured("damaged_record")
    return facts


def damaged_change(model: str, score: str = "crps") -> float:
    """How much worse a model's score of all states is, as a share of that from the clean record."""
    row = next(row for row in damaged()["rows"] if row["model"] == model)
    return float(row["behind"][score] / row["clean"][score] - 1)


def largest_damage(score: str) -> float:
    """The largest change of a score, in either direction."""
    return max((damaged_change(row["model"], score) for row in damaged()["rows"]), key=abs)


def damaged_lines() -> list[str]:
    """The lines of the table of scores."""
    lines = []
    for row in damaged()["rows"]:
        cells = [f"{row[part]['crps']:.6f}" for part in ("clean", "behind", "observed")]
        cells += [f"{row[part]['energy']:.6f}" for part in ("clean", "behind")]
        cells += [f"{row['stuck_sensor_crps'][part]:.6f}" for part in ("clean", "behind")]
        lines.append(f"| {row['model']} | {' | '.join(cells)} |")
    return lines


def simbench() -> dict[str, Any]:
    """The record of SimBench's grid, the scores on it and its next day."""
    facts: dict[str, Any] = measured("simbench")
    return facts


def simbench_score(model: str, score: str = "crps") -> float:
    """A score of a model on SimBench's record."""
    row = next(row for row in simbench()["rows"] if row["model"] == model)
    return float(row[score])


def simbench_quarter(model: str) -> float:
    """The CRPS of a model on the first quarter of that record by itself."""
    row = next(row for row in simbench()["quarter"]["rows"] if row["model"] == model)
    return float(row["crps"])


def simbench_lines() -> list[str]:
    """The lines of the table of scores."""
    lines = []
    for row in simbench()["rows"]:
        numbers = [row["crps"], *row["crps_by_type"].values(), row["energy"], row["loading_crps"]]
        cells = [f"{number:.5f}" for number in numbers]
        lines.append(f"| {row['model']} | {' | '.join(cells)} | {row['coverage_80']:.2f} |")
    return lines


def simbench_risks() -> list[str]:
    """The lines of the table of the buses and lines that most likely violate their limits."""
    return [
        f"| {kind} {risk['name']} | {risk['chance']:.2f} | {risk['hours']:.1f} | "
        f"{risk['riskiest_time_utc'][11:]} |"
        for kind in ("bus", "line")
        for risk in simbench()["tomorrow"][kind]
    ]


DAY_RUNS = {
    "saved": "with a saved fit",
    "saved and written": "with a saved fit and `--out`",
    "new fit": "with a new fit",
}


def day_runs() -> dict[str, Any]:
    """The times of a day's run on a large record."""
    facts: dict[str, Any] = measured("day_run")
    return facts


def day_lines() -> list[str]:
    """The lines of the table of these times."""
    return [
        f"| {DAY_RUNS[row['run']]} | {row['wall_s']:.1f} s | {row['cpu_s']:.1f} s |"
        for row in day_runs()["rows"]
    ]
