"""The numbers of the page about imported records: what damage costs."""

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
