"""The command that shows all of it."""

from pathlib import Path
from typing import Annotated

import typer

from powerphase.cli.data import generate, verified
from powerphase.cli.models import scored
from powerphase.cli.options import task_of
from powerphase.cli.reports import leaderboard
from powerphase.display import console

PRETRAINED = Path(__file__).parents[1] / "pretrained" / "powerforge-activsg500-synthetic"
"""A training that comes with the package, for its data set."""


def quickstart(
    out: Annotated[Path, typer.Option(help="Where to.")] = Path("data/quickstart"),
) -> None:
    """From nothing to a leaderboard and a site: make two years of ACTIVSg 500, forecast and score.

    The references and FactorForge are fitted here; PowerForge was trained on the same data before.

    Example: `powerphase quickstart`
    """
    from powerphase.report.site.build import build_site

    data, results = out / "activsg500", out / "results"
    generate("activsg500", out=data)
    certificate = verified(str(data))
    if not certificate.valid:
        raise typer.Exit(1)
    references = ("last-week", "last-7-days", "climatology", "oracle")
    for model in (*references, "factorforge", str(PRETRAINED)):
        scored(model, task_of(str(data), "10"), seed=42, device="auto").save(results)
    leaderboard([results])
    console.print(
        "FactorForge was fitted just now; PowerForge comes trained with the package, with the "
        "paper's budget. The oracle is not ranked."
    )
    site = build_site([results], out / "site", data=[data], certificates={str(data): certificate})
    console.print(f"rows in {results}; `powerphase info ROW` shows all scores of one")
    console.print(f"open {site.index.resolve()} to look at them", soft_wrap=True)
