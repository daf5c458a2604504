"""One site for all tests: an invented grid, and a small real one with a data set and forecasts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from powerphase.axes import KINDS, V
from powerphase.dataset import Store, verify
from powerphase.evaluation import forecast, score
from powerphase.models import LastSevenDays
from powerphase.records import ForecastFile, Result, open_forecast
from powerphase.report import drawing
from powerphase.report.site import Site, build_site
from powerphase.scenarios import Context, Scenarios
from powerphase.task import Task
from tests.report.site import made_up

SCRIPT = "<script>window.stolen = true</script>"


def both_ways(
    values: NDArray[Any], weights: NDArray[Any], levels: Sequence[float]
) -> NDArray[np.float64]:
    """NumPy's weighted quantiles along the first axis: the mean of those from below and above."""
    weights = weights.astype(np.float64)  # sums in float32 would round off a level
    weights = (weights / weights.sum(axis=0)).round(7)
    options: dict[str, Any] = {"axis": 0, "weights": weights, "method": "inverted_cdf"}
    below = np.quantile(values, levels, **options)
    above = -np.quantile(-values, [1 - level for level in levels], **options)
    return (below + above) / 2


class Lowered(LastSevenDays):
    """The last seven days with increasing weights, some of them far outside the voltage band."""

    name = "lowered"

    def predict(self, context: Context) -> Scenarios:
        values = super().predict(context).values.clone()
        values[:, :3, :, V::KINDS] -= 0.08
        values[:, 3, 20:40, V::KINDS] += 0.2
        weights = torch.arange(1.0, values.shape[1] + 1)[None, :, None] / 28
        return Scenarios(values, weights.expand(1, -1, values.shape[-1]))


@dataclass(frozen=True)
class Built:
    """The site and its inputs."""

    site: Site
    rows: dict[str, tuple[Result, made_up.Arrays]]
    """The rows of the invented grid, by the names that pages use."""
    store: Store
    scripted: ForecastFile
    results: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, sixty_days: Store) -> Built:
    root = tmp_path_factory.mktemp("site")
    rows = made_up.write(root / "results")
    task = Task(sixty_days)
    score(forecast(LastSevenDays(), task), task).save(root / "results")
    forecast(Lowered(), task, out=root / "forecast", device="cpu")
    # No row or model may have such a name, but a forecast file can come from anywhere.
    header = root / "forecast/forecast.json"
    header.write_text(header.read_text().replace('"lowered"', json.dumps(SCRIPT)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "drawing_of", made_up.drawing)
        patch.setattr(drawing, "draw", made_up.of_another_grid)
        site = build_site(
            [root / "results"],
            root / "out",
            data=[sixty_days.path],
            forecasts=[root / "forecast"],
            certificates={sixty_days.path: verify(sixty_days.path)},
        )
    return Built(site, rows, sixty_days, open_forecast(root / "forecast"), root / "results")
