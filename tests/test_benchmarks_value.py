"""The figure of a forecast's value shows what was measured."""

from pathlib import Path

import matplotlib

from benchmarks.value_of_forecast import draw
from docs.measurements import measured

DOCS = Path(__file__).parents[1] / "docs"


def test_the_figure_is_what_the_measurement_draws(tmp_path: Path) -> None:
    assert (DOCS / "value.md").read_text("utf-8").count("](figures/value_of_forecast.svg)") == 1
    committed = (DOCS / "figures" / "value_of_forecast.svg").read_bytes()
    draw(measured("value_of_forecast"), tmp_path / "figure.svg")
    if f"Matplotlib v{matplotlib.__version__}," in committed.decode():
        assert (tmp_path / "figure.svg").read_bytes() == committed
