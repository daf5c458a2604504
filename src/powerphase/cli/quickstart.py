"""The command that shows all of it."""

from pathlib import Path
from typing import Annotated

import typer

from powerphase.cli.data import generate, verified
from powerphase.cli.display import console
from powerphase.cli.models import scored
from powerphase.cli.options import task_of
from powerphase.cli.reports import leaderboard

PRETRAINED = Path(__file__).parents[1] / "pretrained" / "powerforge-activsg500-synthetic"
"""A training that comes with the package, for its data set."""

MODELS = ("last-week", "last-7-days", "climatology", "oracle", "factorforge")
GRIDS = {"activsg500": (*MODELS, str(PRETRAINED)), "ieee57": MODELS}
"""What is forecast by whom; the second is small and has voltages that leave their band."""


def quickstart(
    out: Annotated[Path, typer.Option(help="Where to.")] = Path("data/quickstart"),
) -> None:
    """From nothing to a leaderboard and a site: make two grids, forecast and score.

    Two years of ACTIVSg 500, and of IEEE 57, some of whose voltages leave their band. FactorForge
    and the references are fitted here; PowerForge was trained on the data of ACTIVSg 500 before.

    Example: `powerphase quickstart`
    """
    from powerphase.report.site.build import build_site

    results, certificates = out / "results", {}
    for grid, models in GRIDS.items():
        data = out / grid
        generate(grid, out=data)
        certificates[str(data)] = verified(str(data))
        if not certificates[str(data)].valid:
            raise typer.Exit(1)
        for model in models:
            scored(model, task_of(str(data), "10"), seed=42, device="auto").save(results)
    leaderboard([results])
    console.print(
        "FactorForge was fitted just now; PowerForge comes trained with the package, with the "
        "paper's budget. The oracle is not ranked."
    )
    data_sets = [out / grid for grid in GRIDS]
    site = build_site([results], out / "site", data=data_sets, certificates=certificates)
    console.print(f"rows in {results}; `powerphase info ROW` shows all scores of one")
    console.print(f"open {site.index.resolve()} to look at them", soft_wrap=True)
