"""Effect of standardising z and adding noise: TempFlow with both, with either and with neither.

    python benchmarks/flow.py data/ieee118 data/activsg500 --json flow.json
    python benchmarks/flow.py data/ieee118 --steps 30 --forms both

All forms have the same initial weights and batches, on a CPU. Losses are per channel; the training
loss is the mean of the last epoch. The validation loss is also computed after the running averages
have been measured again with the final weights. CRPS is that of the validation windows, which also
select the best weights. Of Σ u², the squared noise to which the final weights map the validation
windows, the script reports the shares of all voltages and of the constant ones. No test window is
read.
"""

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerphase.axes import KINDS, V
from powerphase.cost import commit, hardware
from powerphase.metrics import Fan, crps
from powerphase.models.flows import EVEN, ODD, TempFlowConfig, TempFlowNetwork
from powerphase.models.framework import (
    InMemoryCheckpoints,
    Trainer,
    apply_variants,
    load_into,
    seed_torch,
    with_training,
)
from powerphase.scenarios import Batches, Training
from powerphase.task import Task

CPU, SEED = torch.device("cpu"), 42
NOISY = TempFlowConfig()
NOISELESS = apply_variants(NOISY, ["reference-flow"], NOISY.VARIANTS)
SETTLING_BATCHES = 200
"""Batches after which running averages have forgotten their past: 0.9²⁰⁰ is below 10⁻⁹."""
CONSTANT = 1e-6
"""Largest relative range of a constant channel: a few of its last digits."""
VOLTAGES = slice(V, None, KINDS)


class Unstandardised(TempFlowNetwork):
    """TempFlow without standardisation, whatever the noise."""

    def prepare(self, batches: Batches) -> None:
        """Measure nothing."""


class Standardised(TempFlowNetwork):
    """TempFlow with the default standardisation, whatever the noise."""

    @torch.no_grad()
    def prepare(self, batches: Batches) -> None:
        """Measure mean and spread of the channels."""
        self.flow.standardise(self.pooled_moments(batches), NOISY.noise)


FORMS: dict[str, tuple[type[TempFlowNetwork], TempFlowConfig]] = {
    "reference": (TempFlowNetwork, NOISELESS),
    "noise only": (Unstandardised, NOISY),
    "standardised only": (Standardised, NOISELESS),
    "both": (TempFlowNetwork, NOISY),
}


@dataclass(frozen=True)
class Budget:
    """Sizes of a training that takes a minute or two on a CPU."""

    steps: int = 120
    validated_every: int = 30
    batch_size: int = 8
    context: int = 144
    paths: int = 20
    forms: tuple[str, ...] = tuple(FORMS)


LARGE = Budget(40, 20, 4, 96, 16, ("reference", "both"))
LARGE_CHANNELS = 1000


class EpochLog(InMemoryCheckpoints):
    """Stores checkpoints in memory, and the log of all epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[dict[str, Any]] = []

    def log(self, line: Mapping[str, Any]) -> None:
        """Store a line of the log."""
        self.epochs.append(dict(line))


class Evaluator:
    """Evaluates a network on all validation windows at once."""

    def __init__(self, training: Training, budget: Budget) -> None:
        self.training, self.budget = training, budget
        self.context, self.target = training.validation.load(len(training.validation))[0]
        self.constant = constant_channels(training)

    @torch.no_grad()
    def crps(self, network: TempFlowNetwork) -> dict[str, float]:
        """CRPS over all channels, and over voltages."""
        network.eval()
        fan = Fan.of(network.scenarios(self.context, SEED))
        scores = crps(fan, self.target).double()
        return {"crps": float(scores.mean()), "crps_voltage": float(scores[..., VOLTAGES].mean())}

    @torch.no_grad()
    def settled_loss(self, network: TempFlowNetwork) -> float:
        """Loss per channel after running averages have settled, without noise and dropout."""
        batches = self.training.batches(self.budget.batch_size, SEED, CPU)
        network.eval()
        network.flow.train()
        for number in range(SETTLING_BATCHES):
            network(*batches[number])
        network.flow.eval()
        return float(network(self.context, self.target).loss) / network.n_channels

    @torch.no_grad()
    def square_shares(self, network: TempFlowNetwork) -> dict[str, float]:
        """Shares of Σ u² of all voltages and of the constant ones."""
        outputs: list[Any] = []
        last = network.flow.couplings[-1]
        hook = last.register_forward_hook(lambda *call: outputs.append(call[-1]))
        network.eval()(self.context, self.target)
        hook.remove()
        ends = [half.affine.moments(half.moments) for half in outputs[0][:2]]
        squares = torch.empty(network.n_channels)
        # The last of three couplings transforms even channels, like the first.
        squares[EVEN::2], squares[ODD::2] = (end.variance + end.mean.square() for end in ends)
        voltages, total = squares[VOLTAGES], squares.sum()
        return {
            "squares_voltage": float(voltages.sum() / total),
            "squares_still_voltage": float(voltages[self.constant[VOLTAGES]].sum() / total),
        }


def constant_channels(training: Training) -> Tensor:
    """Which channels are constant throughout the training record."""
    record = training.record.load()
    low, high = record.amin(0), record.amax(0)
    return high - low <= CONSTANT * torch.maximum(low.abs(), high.abs())


def train(form: str, training: Training, budget: Budget) -> tuple[TempFlowNetwork, EpochLog]:
    """The network with its final weights, and the log with the best ones."""
    kind, config = FORMS[form]
    epochs = {
        "epochs": budget.steps // budget.validated_every,
        "batches_per_epoch": budget.validated_every,
        "batch_size": budget.batch_size,
    }
    config = with_training(replace(config, paths=budget.paths), epochs)
    windows, log = training.validation, EpochLog()
    seed_torch(CPU, SEED, "weights")
    network = kind(config, training.layout.n_channels, windows.context_steps, windows.horizon)
    Trainer(network, training, config.training, SEED, CPU, log).run()
    return network, log


def measure(form: str, evaluator: Evaluator) -> dict[str, Any]:
    """Losses of a form of the flow, and CRPS with the final and the best weights."""
    start = time.perf_counter()
    network, log = train(form, evaluator.training, evaluator.budget)
    train_s, end, channels = time.perf_counter() - start, log.epochs[-1], network.n_channels
    last = evaluator.crps(network) | evaluator.square_shares(network)
    settled = evaluator.settled_loss(network)
    weights, facts = log.best()
    load_into(network, weights, f"the best weights of {form}")
    return {
        "form": form,
        "training": end["loss"] / channels,
        "validation": end["validation_loss"] / channels,
        "validations": [epoch["validation_loss"] / channels for epoch in log.epochs],
        "validation_anew": settled,
        "last": last,
        "kept": {
            "step": facts["epoch"] * evaluator.budget.validated_every,
            **evaluator.crps(network),
        },
        "train_s": train_s,
    }


def measure_grid(data: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all forms on a data set."""
    budget = budget_for(Task(data).layout.n_channels, options)
    task = Task(data, context=budget.context)
    evaluator = Evaluator(task.training, budget)
    n_constant, n_channels = int(evaluator.constant.sum()), len(evaluator.constant)
    print(f"{task.layout.grid}: {n_constant} of {n_channels} channels are constant")
    forms = []
    for form in budget.forms:
        forms.append(measure(form, evaluator))
        print(table_row(forms[-1]), flush=True)
    facts = {
        "grid": task.layout.grid,
        "edition": task.store.manifest.edition,
        "fingerprint": task.store.manifest.fingerprint,
        "channels": n_channels,
        "still_channels": n_constant,
        "still_voltages": int(evaluator.constant[VOLTAGES].sum()),
    }
    machine = {"hardware": hardware(CPU), "threads": torch.get_num_threads()}
    machine |= {"torch": torch.__version__, "commit": commit()}
    return {**facts, "budget": asdict(budget), "forms": forms, **machine}


def budget_for(channels: int, options: argparse.Namespace) -> Budget:
    """The budget for a grid of this size, with the options of the command."""
    budget = LARGE if channels >= LARGE_CHANNELS else Budget()
    chosen = {name: getattr(options, name) for name in ("steps", "forms")}
    return replace(budget, **{name: value for name, value in chosen.items() if value})


def table_row(row: dict[str, Any]) -> str:
    """A row of the page's table."""
    last, kept = row["last"], row["kept"]
    return (
        f"| {row['form']} | {row['training']:.1f} | {row['validation']:,.1f} "
        f"| {row['validation_anew']:.1f} | {last['crps']:.4f} "
        f"| {kept['crps']:.4f} (step {kept['step']}) |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", nargs="+", help="folders of data sets")
    parser.add_argument(
        "--steps", type=int, help="multiple of 30 on a small grid, of 20 on a large one"
    )
    parser.add_argument(
        "--forms",
        nargs="+",
        choices=tuple(FORMS),
        help="forms to train (default: by the size of the grid)",
    )
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    grids = [measure_grid(data, options) for data in options.data]
    if options.json:
        options.json.write_text(json.dumps(grids, indent=1) + "\n")


if __name__ == "__main__":
    main()
