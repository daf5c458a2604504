"""Why the flow standardises z and adds noise to it: TempFlow with both, with either, with neither.

    python benchmarks/flow.py data/ieee118 data/activsg500 --json flow.json
    python benchmarks/flow.py data/ieee118 --steps 30 --forms both

Each form has the same first weights and sees the same batches, on a CPU. The losses are a channel's
share; the training's is the mean of the last epoch. The validation is also taken with averages that
were measured anew, with the weights as they are. CRPS is that of the validation windows, which also
choose the weights that are kept. Of Σ u², where the last weights take the validation windows, the
shares of all voltages and of those that never move are given. No test window is read.
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
from powerphase.models.flows.network import MEASURED
from powerphase.models.flows.normalisation import Moments
from powerphase.models.flows.realnvp import EVEN, ODD
from powerphase.models.flows.tempflow.config import TempFlowConfig
from powerphase.models.flows.tempflow.network import TempFlowNetwork
from powerphase.models.framework.checkpoint import load_into
from powerphase.models.framework.neural import with_training
from powerphase.models.framework.saved import InMemoryCheckpoints
from powerphase.models.framework.training import Trainer, seed_torch
from powerphase.models.framework.variants import with_variants
from powerphase.scenarios import Batches, Training
from powerphase.task.windows import Task

CPU, SEED = torch.device("cpu"), 42
NOISY = TempFlowConfig()
PURE = with_variants(NOISY, ["reference-flow"], NOISY.VARIANTS)
SETTLING = 200
"""Batches in which running averages forget what they were: 0.9²⁰⁰ is below 10⁻⁹."""
STILL = 1e-6
"""Of its size, what a channel that never moves may move by: a few of its last digits."""
VOLTAGES = slice(V, None, KINDS)


class AsItIs(TempFlowNetwork):
    """The flow is given z as it is."""

    def prepare(self, batches: Batches) -> None:
        """Nothing is measured."""


class Standardising(TempFlowNetwork):
    """The flow standardises z as it does by default, whatever noise is added to it."""

    @torch.no_grad()
    def prepare(self, batches: Batches) -> None:
        """Measure where channels lie and how far they move."""
        found = [self._moments(*batches[number]) for number in range(MEASURED)]
        self.flow.standardise(Moments.pooled(found), NOISY.noise)


FORMS: dict[str, tuple[type[TempFlowNetwork], TempFlowConfig]] = {
    "the reference's way": (TempFlowNetwork, PURE),
    "noise alone": (AsItIs, NOISY),
    "standardised alone": (Standardising, PURE),
    "both": (TempFlowNetwork, NOISY),
}


@dataclass(frozen=True)
class Budget:
    """What a training on a CPU is given in a minute or two."""

    steps: int = 120
    validated_every: int = 30
    batch_size: int = 8
    context: int = 144
    paths: int = 20
    forms: tuple[str, ...] = tuple(FORMS)


LARGE = Budget(40, 20, 4, 96, 16, ("the reference's way", "both"))
LARGE_CHANNELS = 1000


class Course(InMemoryCheckpoints):
    """Keeps the numbers of all epochs too."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[dict[str, Any]] = []

    def log(self, line: Mapping[str, Any]) -> None:
        """Keep it."""
        self.epochs.append(dict(line))


class Judge:
    """Asks a network on all validation windows at once."""

    def __init__(self, training: Training, budget: Budget) -> None:
        self.training, self.budget = training, budget
        self.context, self.target = training.validation.load(len(training.validation))[0]
        self.still = never_move(training)

    @torch.no_grad()
    def crps(self, network: TempFlowNetwork) -> dict[str, float]:
        """CRPS over all channels, and over voltages."""
        network.eval()
        fan = Fan.of(network.scenarios(self.context, SEED))
        found = crps(fan, self.target).double()
        return {"crps": float(found.mean()), "crps_voltage": float(found[..., VOLTAGES].mean())}

    @torch.no_grad()
    def loss_anew(self, network: TempFlowNetwork) -> float:
        """A channel's loss once running averages have come to rest, without noise and dropout."""
        batches = self.training.batches(self.budget.batch_size, SEED, CPU)
        network.eval()
        network.flow.train()
        for number in range(SETTLING):
            network(*batches[number])
        network.flow.eval()
        return float(network(self.context, self.target).loss) / network.n_channels

    @torch.no_grad()
    def square_shares(self, network: TempFlowNetwork) -> dict[str, float]:
        """Of Σ u², what is the voltages' and what is theirs that never move."""
        made: list[Any] = []
        hook = network.flow.couplings[-1].register_forward_hook(lambda *call: made.append(call[-1]))
        network.eval()(self.context, self.target)
        hook.remove()
        ends = [half.affine.moments(half.moments) for half in made[0][:2]]
        squares = torch.empty(network.n_channels)
        # The last of three couplings moves even channels, as the first does.
        squares[EVEN::2], squares[ODD::2] = (end.variance + end.mean.square() for end in ends)
        voltages, whole = squares[VOLTAGES], squares.sum()
        return {
            "squares_voltage": float(voltages.sum() / whole),
            "squares_still_voltage": float(voltages[self.still[VOLTAGES]].sum() / whole),
        }


def never_move(training: Training) -> Tensor:
    """Which channels stay what they are in all of the training record."""
    whole = training.record.load()
    low, high = whole.amin(0), whole.amax(0)
    return high - low <= STILL * torch.maximum(low.abs(), high.abs())


def trained(form: str, training: Training, budget: Budget) -> tuple[TempFlowNetwork, Course]:
    """The network with its last weights, and what was kept on the way."""
    kind, config = FORMS[form]
    epochs = {
        "epochs": budget.steps // budget.validated_every,
        "batches_per_epoch": budget.validated_every,
        "batch_size": budget.batch_size,
    }
    config = with_training(replace(config, paths=budget.paths), epochs)
    windows, course = training.validation, Course()
    seed_torch(CPU, SEED, "weights")
    network = kind(config, training.layout.n_channels, windows.context_steps, windows.horizon)
    Trainer(network, training, config.training, SEED, CPU, course).run()
    return network, course


def measured(form: str, judge: Judge) -> dict[str, Any]:
    """One form of the flow: its losses, and CRPS by the last weights and by those kept."""
    start = time.perf_counter()
    network, course = trained(form, judge.training, judge.budget)
    train_s, end, channels = time.perf_counter() - start, course.epochs[-1], network.n_channels
    last = judge.crps(network) | judge.square_shares(network)
    anew = judge.loss_anew(network)
    weights, facts = course.best()
    load_into(network, weights, f"the weights kept of {form}")
    return {
        "form": form,
        "training": end["loss"] / channels,
        "validation": end["validation_loss"] / channels,
        "validations": [epoch["validation_loss"] / channels for epoch in course.epochs],
        "validation_anew": anew,
        "last": last,
        "kept": {"step": facts["epoch"] * judge.budget.validated_every, **judge.crps(network)},
        "train_s": train_s,
    }


def on_grid(data: str, options: argparse.Namespace) -> dict[str, Any]:
    """All forms on a data set."""
    budget = budget_for(Task(data).layout.n_channels, options)
    task = Task(data, context=budget.context)
    judge = Judge(task.training, budget)
    print(f"{task.layout.grid}, {int(judge.still.sum())} of {len(judge.still)} channels never move")
    forms = []
    for form in budget.forms:
        forms.append(measured(form, judge))
        print(line(forms[-1]), flush=True)
    about = {
        "grid": task.layout.grid,
        "edition": task.store.manifest.edition,
        "fingerprint": task.store.manifest.fingerprint,
        "channels": len(judge.still),
        "still_channels": int(judge.still.sum()),
        "still_voltages": int(judge.still[VOLTAGES].sum()),
    }
    made = {"hardware": hardware(CPU), "threads": torch.get_num_threads()}
    made |= {"torch": torch.__version__, "commit": commit()}
    return {**about, "budget": asdict(budget), "forms": forms, **made}


def budget_for(channels: int, options: argparse.Namespace) -> Budget:
    """That of a grid of this size, with what was asked for."""
    budget = LARGE if channels >= LARGE_CHANNELS else Budget()
    given = {name: getattr(options, name) for name in ("steps", "forms")}
    return replace(budget, **{name: value for name, value in given.items() if value})


def line(row: dict[str, Any]) -> str:
    """A form as a line of the page's table."""
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
        "--steps", type=int, help="whole epochs, of 30 on a small grid, 20 on a large"
    )
    parser.add_argument(
        "--forms", nargs="+", choices=tuple(FORMS), help="instead of those for the grid's size"
    )
    parser.add_argument("--json", type=Path, help="also write the measurements there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    grids = [on_grid(data, options) for data in options.data]
    if options.json:
        options.json.write_text(json.dumps(grids, indent=1) + "\n")


if __name__ == "__main__":
    main()
