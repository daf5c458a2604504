"""The figure of what a joint likelihood takes from the mean, and what its page says of it."""

import json
from pathlib import Path

import matplotlib
import torch

from benchmarks.likelihood import CASES, SEEDS, STEPS, draw, mean_share
from docs.measurements import joint_part
from powerphase.models.deepar import Gaussian

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "figures" / "likelihood.svg"
REPORT = json.loads((ROOT / "benchmarks" / "measured" / "likelihood.json").read_text("utf-8"))


def gaussian(norm: float) -> Gaussian:
    mean = torch.zeros(2, 3, 4)
    return Gaussian(mean, (torch.full_like(mean, norm),), torch.ones_like(mean))


def test_a_factor_takes_the_gradient_of_what_it_explains() -> None:
    """Of a residual along the factor, 1 / (1 + |f|²) is left; of one across it, everything."""
    along, across = torch.ones(2, 3, 4), torch.tensor([1.0, -1.0, 1.0, -1.0]).expand(2, 3, 4)
    assert torch.isclose(torch.tensor(mean_share(gaussian(0.5), along)), torch.tensor(0.5))
    assert torch.isclose(torch.tensor(mean_share(gaussian(0.5), across)), torch.tensor(1.0))


def test_the_large_joint_part_has_the_smaller_gradient_and_slope() -> None:
    """With every seed, although its loss falls first: the likelihood does not need the mean."""
    for model in CASES:
        for quantity in ("gradient", "slope"):
            large, small = (joint_part(model, part, 100, quantity) for part in (False, True))
            assert len(large) == len(small) == len(SEEDS)
            assert max(large) < min(small)
        losses = (joint_part(model, part, 40, "loss") for part in (False, True))
        assert all(large < small for large, small in zip(*losses, strict=True))
    assert all(row["curve"][-1]["step"] == STEPS for row in REPORT["rows"])


def test_the_committed_figure_is_drawn_from_the_measurements(tmp_path: Path) -> None:
    committed = FIGURE.read_bytes()
    assert (ROOT / "docs" / "learning.md").read_text("utf-8").count(
        "](figures/likelihood.svg)"
    ) == 1
    draw(REPORT, tmp_path / "figure.svg")
    if f"Matplotlib v{matplotlib.__version__}," in committed.decode():
        assert (tmp_path / "figure.svg").read_bytes() == committed
