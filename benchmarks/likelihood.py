"""What a joint likelihood takes from the forecast's mean, step by step of a training.

    python -m benchmarks.likelihood --json likelihood.json
    python -m benchmarks.likelihood --json likelihood.json --plot likelihood.svg

The first trains, which takes minutes on a CPU; the second draws what the file holds.

The record is that of the tests, wider: every channel has a daily cycle of its own phase, deviations
that fade, and noise. TempFlow and DeepAR are trained twice from each seed: once as their references
have it, and once with a joint part that starts small and learns slowly. Encoder, inputs, sampling
and all else are the same, so what differs between the two is due to the likelihood. Examined on
the validation windows:

- `loss`: the training loss per channel, in nats;
- `gradient`: what the loss asks of the mean. TempFlow: the root mean square, over steps, of the
  gradient of a step's loss per channel by the condition. DeepAR: the gradient by the means, over
  what it would be without the shared factor;
- `slope`: the daily slope, mean over P, Q, V and θ.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.trials import initial_network
from docs.figures.scores import BLUE, RED, STYLE, write_svg
from powerphase.cost import hardware
from powerphase.metrics import Fan, daily_slope
from powerphase.models.deepar import DeepARNetwork, Gaussian, channel_sums, negative_log_likelihood
from powerphase.models.framework import InMemoryCheckpoints, Network, Trainer, make_config
from powerphase.models.recurrent import Window
from powerphase.registry import MODELS, model_class
from powerphase.scenarios import Context, Windows
from tests.models.planted import DAY, planted_training

CPU, SEEDS, BUSES, STEPS, EVERY = torch.device("cpu"), (1, 2, 3), 50, 240, 20
SMALL = {"lags": [1, 2, 12], "lag_inputs": 10, "cells": 16, "dropout": 0.0, "paths": 20}
"""Sizes that train in seconds. The layer of lagged values is narrow, so that it is not at fault."""
TRAINING = {
    "batches_per_epoch": EVERY,
    "epochs": STEPS // EVERY,
    "batch_size": 16,
    "learning_rate": 2e-3,
}
TITLES = {
    name: {"loss": "loss per channel [nats]", "gradient": title, "slope": "daily slope"}
    for name, title in (
        ("tempflow", "gradient by the condition"),
        ("deepar", "gradient by the means [share]"),
    )
}


class Case(NamedTuple):
    """A network, its settings, and the one that makes its joint part small."""

    settings: Mapping[str, Any]
    cure: str
    value: float


CASES = {
    "tempflow": Case({"condition": 16, "hidden": 16}, "coupling_inputs", 0.1),
    "deepar": Case({"standardise": True, "noise": True}, "factor_norm", 0.03),
}


class Diary(InMemoryCheckpoints):
    """Examines a network after every epoch of its training."""

    def __init__(self, network: Network, windows: Windows) -> None:
        super().__init__()
        self.network = network
        ((self.context, self.target),) = windows.load(len(windows))

    def log(self, line: Mapping[str, Any]) -> None:
        """Examine the network."""
        self.network.eval()
        numbers = examine(self.network, self.context, self.target)
        self.network.train()
        super().log({"step": line["step"], **numbers})
        print(json.dumps(numbers), flush=True)


def examine(network: Any, context: Context, target: Tensor) -> dict[str, float]:
    """Loss per channel, gradient and daily slope on these windows."""
    past, target_, clock, scale = network.inputs(context, target)
    window = Window(past, target_, scale)
    output = network.encoder(window, clock).detach().requires_grad_()
    window = network._standardise(window)
    loss = network.head_losses(output, window).loss / network.n_channels
    if isinstance(network, DeepARNetwork):
        values = network.scaled_steps(window, slice(None))
        gradient = mean_share(network.head(output), values)
    else:
        (by_row,) = torch.autograd.grad(loss * output[..., 0].numel(), output)
        gradient = float(by_row.square().sum(2).mean().sqrt())
    fan = Fan.of(network.scenarios(context, 0))
    slope = daily_slope(fan.expect(fan.values), target, DAY).mean()
    numbers = {"loss": float(loss.detach()), "gradient": gradient, "slope": float(slope)}
    return {name: float(f"{number:.4g}") for name, number in numbers.items()}


def mean_share(gaussian: Gaussian, values: Tensor) -> float:
    """The gradient of the loss by the means, over that of a Gaussian without factors."""
    with_factors, without = (
        gradient_by_mean(part, values) for part in (gaussian, gaussian._replace(factors=()))
    )
    return float(with_factors.norm() / without.norm())


def gradient_by_mean(gaussian: Gaussian, values: Tensor) -> Tensor:
    """The gradient of the sum of the losses of all steps by the means."""
    mean = gaussian.mean.detach().requires_grad_()
    sums = channel_sums(gaussian._replace(mean=mean), values)
    loss = negative_log_likelihood(sums, len(gaussian.factors), values.shape[2]).sum()
    return torch.autograd.grad(loss, mean)[0]


def train_all() -> Iterator[dict[str, Any]]:
    """A curve of each network, with and without the cure, for each seed."""
    for name, case in CASES.items():
        kind: Any = model_class(name)
        for value in (None, case.value):
            settings = {**SMALL, **case.settings, case.cure: value}
            config = make_config(kind.config_type, {**settings, "training": TRAINING})
            for seed in SEEDS:
                train = planted_training(7 * DAY, n_buses=BUSES)
                network = initial_network(kind(config, device="cpu"), train, seed)
                diary = Diary(network, train.validation)
                Trainer(network, train, config.training, seed, CPU, diary).run()
                yield {"model": name, "cured": value is not None, "curve": diary.curve()}


def draw(report: Mapping[str, Any], out: Path) -> None:
    """Draw the curves, 640 x 400 pixels in a browser: a row of panels for each network."""
    with style.context(["default", STYLE]):
        figure = Figure((640 / 96, 400 / 96), layout="constrained")
        for row, name in zip(figure.subplots(len(CASES), 3, sharex=True), CASES, strict=True):
            rows = [row for row in report["rows"] if row["model"] == name]
            for axes, (quantity, title) in zip(row, TITLES[name].items(), strict=True):
                draw_panel(axes, rows, quantity)
                axes.set_title(title)
            label_curves(row[0], name)
            row[0].set_ylabel(MODELS[name].title)
        figure.supxlabel("training step", fontsize=9)
        write_svg(figure, out)


def draw_panel(axes: Axes, rows: list[dict[str, Any]], quantity: str) -> None:
    """A line for each training."""
    for row in rows:
        steps, values = zip(*((at["step"], at[quantity]) for at in row["curve"]), strict=True)
        axes.plot(steps, values, color=BLUE if row["cured"] else RED, linewidth=1)
    if quantity != "loss":
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))


def label_curves(axes: Axes, name: str) -> None:
    """Name the two colours by the setting in which they differ."""
    case = CASES[name]
    for height, color, value in ((0.86, BLUE, case.value), (0.74, RED, None)):
        label = f"{case.cure} {value}"
        axes.text(0.97, height, label, color=color, ha="right", transform=axes.transAxes)


def main() -> None:
    """Train and measure, or draw what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True, help="file of the measurements")
    parser.add_argument("--plot", type=Path, help="draw them into this file instead")
    options = parser.parse_args()
    if options.plot:
        draw(json.loads(options.json.read_text(encoding="utf-8")), options.plot)
        return
    facts = {"hardware": hardware(CPU), "torch": torch.__version__, "buses": BUSES}
    report = {**facts, "rows": list(train_all())}
    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
