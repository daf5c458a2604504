"""What marginal and joint scenarios say of the risk of a day, and what happened.

    python benchmarks/calibration.py data/ieee57 data/activsg500 --figures docs/figures

With `--out` it writes the numbers to a file.

Forms of FactorForge, and of climatology coupled to past days, are compared on validation days; the
test days show the final choice. Joint scenarios are read after their power flow was solved.
"""

import argparse
import json
from copy import copy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from powerphase import Calibration, Task, calibrate, couple
from powerphase.cli.calibration_display import as_json, points
from powerphase.models import Climatology, FactorForge, Forecaster
from powerphase.report.figures import calibration_figure, write_figure

COUNTS = (16, 50, 100, 200)
CHOSEN = 100
COUPLED_COUNTS = (16, 50)
TESTED = ("fan", f"ranked-{CHOSEN}", "climatology", "climatology-schaake-16")
DRAWN = {"fan": "factorforge+fan", f"ranked-{CHOSEN}": "factorforge"}
"""The names in the figure."""


def main() -> None:
    """Fit FactorForge to each data set and compare its forms."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figures", type=Path)
    options = parser.parse_args()
    rows = [row for data in options.data for row in compare(data, options.figures)]
    if options.out:
        options.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def compare(data: Path, figures: Path | None) -> list[dict[str, Any]]:
    """The rows of one data set; writes its figure."""
    task = Task(data, windows="all")
    rows, drawn = [], {}
    forms = forms_of(task)
    for split, names in (("validation", tuple(forms)), ("test", TESTED)):
        for name in names:
            done = calibrate(forms[name], task, split=split, joint=False, device="cpu")
            rows.append(row(name, done, task))
            if split == "test" and name in DRAWN:
                drawn[DRAWN[name]] = points(done)
    if figures:
        figure = calibration_figure(drawn, f"calibration-{task.layout.grid}")
        write_figure(figure, figures, ["svg"])
    return rows


def forms_of(task: Task) -> dict[str, Forecaster]:
    """What is compared, by name."""
    with TemporaryDirectory() as run:
        FactorForge(run=run).fit(task.training)
        model = FactorForge.load(run)  # is not fitted again
    coupled = {
        f"climatology-schaake-{count}": couple(Climatology(), "schaake", scenarios=count)
        for count in COUPLED_COUNTS
    }
    return {
        "fan": model,
        f"draws-{CHOSEN}": draws_of(model),
        **{f"ranked-{count}": model.joint_form(count) for count in COUNTS},
        "climatology": Climatology(),
        **coupled,
    }


def draws_of(model: FactorForge) -> FactorForge:
    """The fitted model with random draws as its scenarios."""
    form = copy(model)
    form.config = replace(model.config, coupling="draws", scenarios=CHOSEN)
    return form


def row(form: str, done: Calibration, task: Task) -> dict[str, Any]:
    """The numbers of one form, which are also printed."""
    manifest = task.store.manifest
    facts = {"edition": manifest.edition, "setpoint": manifest.recipe["setpoint"]}
    numbers: dict[str, Any] = {"form": form, **facts, **as_json(done)}
    brier = done.brier
    print(
        f"{numbers['grid']} {numbers['split']} {form}: Brier {brier.score:.4f}, reliability "
        f"{brier.reliability:.4f}, CRPS of hours {numbers['hours_crps']:.4f} h",
        flush=True,
    )
    return numbers


if __name__ == "__main__":
    main()
