"""Trials of a network's settings on validation windows: CRPS, loss and daily slope by step.

    python benchmarks/trials.py data/activsg500 trials.json --out measured/trials.jsonl
    python benchmarks/trials.py data/ieee14 trials.json --out trials.jsonl --steps 600 --at-once 2

The file holds a list of trials: {"model": "deepar", "options": {"lag_rate": 0.03, "training":
{"learning_rate": 0.002}}, "steps": 2000}. Options are fields of the model's config. Each trial runs
in a process of its own, several at a time, and its line is written as soon as it ends. A trial that
takes longer than its limit stops at the end of an epoch, and its line says so. Test windows are
never read.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerphase.axes import KINDS, VARIABLES
from powerphase.cost import commit, hardware, peak_memory_gib, reset_peak_memory
from powerphase.errors import PowerphaseError
from powerphase.metrics import Fan, crps, daily_products
from powerphase.models.framework.base import Prediction
from powerphase.models.framework.config_reader import make_config
from powerphase.models.framework.configuration import changed_fields
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.network import Network
from powerphase.models.framework.neural import with_training
from powerphase.models.framework.run import Domain
from powerphase.models.framework.saved import InMemoryCheckpoints
from powerphase.models.framework.training import Trainer, seed_torch
from powerphase.registry import model_class
from powerphase.scenarios import Scenarios, Training, Windows
from powerphase.task.windows import Task

GRACE_S = 120.0
"""What a process may take beyond its limit, to end an epoch and to start, before it is killed."""


class OutOfTimeError(Exception):
    """The limit of a trial has passed."""


class Notebook(InMemoryCheckpoints):
    """Keeps the checkpoints of a training, and examines forecasts now and then.

    Args:
        network: that is trained.
        windows: to forecast.
        device: of the network.
        every: steps between examinations.
        steps: of the training.
        stop: when to stop, by `time.monotonic`.
    """

    def __init__(
        self,
        network: Network,
        windows: Windows,
        device: torch.device,
        every: int,
        steps: int,
        stop: float,
    ) -> None:
        super().__init__()
        self.network, self.windows = network, windows.load(1, device)
        self.every, self.steps, self.stop = every, steps, stop
        self.examined: list[dict[str, Any]] = []
        self._next = every

    def log(self, line: Mapping[str, Any]) -> None:
        """Examine the network if it is time to."""
        super().log(line)
        is_last, late = line["step"] >= self.steps, time.monotonic() > self.stop
        if line["step"] >= self._next or is_last or late:
            self._next += self.every
            names = ("step", "loss", "gradient_norm", "learning_rate", "seconds")
            facts = {name: line[name] for name in names}
            validation = {k: v for k, v in line.items() if k.startswith("validation_")}
            self.examined.append({**facts, **validation, **self._examine()})
            print(json.dumps(self.examined[-1]), file=sys.stderr, flush=True)
        if late and not is_last:
            raise OutOfTimeError

    @torch.no_grad()
    def _examine(self) -> dict[str, Any]:
        """CRPS and daily slope of the validation windows by kind."""
        total: Any = 0.0
        for context, target in self.windows:
            try:
                parts = list(blocks(self.network.scenarios(context, 0), target))
            except PowerphaseError as error:  # paths may diverge early, and recover
                return {"failed": str(error)}
            total = total + torch.cat(parts, dim=1)
        score, cross, square = total.unflatten(1, (-1, KINDS)).sum(1)
        score = score / (len(self.windows) * target.shape[1] * target.shape[2] // KINDS)
        return {
            "crps": float(score.mean()),
            "crps_by_kind": by_kind(score),
            "slope": by_kind(cross / square),
        }


def by_kind(numbers: Tensor) -> dict[str, float]:
    """The numbers of P, Q, V and θ by name."""
    return dict(zip(VARIABLES, (float(f"{n:.4g}") for n in numbers.tolist()), strict=True))


def blocks(prediction: Prediction, target: Tensor) -> Iterator[Tensor]:
    """Sums over the steps of a window, 3 × channels: CRPS, and the products of the daily slope."""
    if isinstance(prediction, Scenarios):
        prediction = iter([(slice(None), prediction)])
    for channels, scenarios in prediction:
        fan, truth = Fan.of(scenarios), target[..., channels]
        score = crps(fan, truth).sum((0, 1), dtype=torch.float64)
        yield torch.cat([score[None], daily_products(fan.expect(fan.values), truth)])


def run_trial(data: str, trial: Mapping[str, Any]) -> dict[str, Any]:
    """Train as the trial says, and return its line."""
    start, device = time.monotonic(), choose_device("auto")
    train = Task(data, windows=1).training
    kind: Any = model_class(trial["model"])
    config = make_config(kind.config_type, trial["options"])
    epoch = config.training.batches_per_epoch
    budget = {"epochs": max(1, trial["steps"] // epoch), "batch_size": trial["batch_size"]}
    config = with_training(config, budget)
    model = kind(config, seed=trial["seed"], device="auto")
    network = initial_network(model, train, trial["seed"])
    steps = config.training.steps
    every = trial.get("every") or max(epoch, steps // 10)
    stop = start + trial["limit"]
    notebook = Notebook(network, train.validation, device, every, steps, stop)
    reset_peak_memory()
    trainer = Trainer(network, train, config.training, trial["seed"], device, notebook)
    late = False
    try:
        trainer.run()
    except OutOfTimeError:
        late = True
    scored = [line for line in notebook.examined if "crps" in line]
    return {
        **trial,
        "changed": changed_fields(config, kind.config_type()),
        "config": asdict(config),
        "grid": train.layout.grid,
        "stopped": late,
        "best": min(scored, key=lambda line: float(line["crps"]), default=None),
        "curve": notebook.examined,
        "seconds": time.monotonic() - start,
        "train_s": trainer.seconds,
        "peak_memory_gib": peak_memory_gib(device),
        "hardware": hardware(device),
        "torch": torch.__version__,
        "commit": commit() or trial["commit"],
    }


def initial_network(model: Any, train: Training, seed: int) -> Network:
    """The network with the initial weights of that seed."""
    domain = Domain.of_training(train)
    with torch.random.fork_rng(devices=[]):
        seed_torch(torch.device("cpu"), seed, "weights")
        network: Network = model.make_network(domain)
    return network


class Running:
    """A trial in a process of its own."""

    def __init__(self, data: str, trial: Mapping[str, Any], folder: Path, number: int) -> None:
        self.trial, self.stop = trial, time.monotonic() + trial["limit"] + GRACE_S
        self.log = folder / f"{number:02d}-{trial['model']}.log"
        command = [sys.executable, __file__, data, json.dumps(trial), "--child"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def line(self) -> dict[str, Any] | None:
        """Its line if it has ended, with what went wrong if it failed."""
        if self.process.poll() is None:
            if time.monotonic() < self.stop:
                return None
            self.process.kill()
        answer, _ = self.process.communicate()
        if self.process.returncode == 0:
            line: dict[str, Any] = json.loads(answer.splitlines()[-1])
            return line
        last = self.log.read_text().strip().splitlines()[-1:] or ["no message"]
        return {**self.trial, "failed": last[0]}


def run_all(data: str, trials: list[dict[str, Any]], out: Path, at_once: int) -> None:
    """Run the trials in their order, so many at a time; append each line when it is there."""
    logs = out.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    waiting, running = list(enumerate(trials)), list[Running]()
    while waiting or running:
        while waiting and len(running) < at_once:
            number, trial = waiting.pop(0)
            running.append(Running(data, trial, logs, number))
        for job in list(running):
            if (line := job.line()) is not None:
                running.remove(job)
                with out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(summary(line), flush=True)
        time.sleep(0.2)


def summary(line: Mapping[str, Any]) -> str:
    """The trial as a line of text."""
    what = f"{line['model']} {json.dumps(line['options'])} {line['steps']}"
    if "failed" in line or line["best"] is None:
        return f"{what}: failed, {line.get('failed') or line['curve'][-1:]}"
    best, last = line["best"], line["curve"][-1]
    slope = " ".join(f"{kind} {value:.2f}" for kind, value in best["slope"].items())
    return (
        f"{what}: CRPS {best['crps']:.5f} at step {best['step']}, last {last.get('crps')}; slope "
        f"{slope}; {line['seconds']:.0f} s, {line['train_s']:.0f} s in training"
    )


def main() -> None:
    """Run the trials of a file, or one trial in a process that was started for it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", help="folder of a data set")
    parser.add_argument("trials", help="file with a list of trials")
    parser.add_argument("--out", type=Path, help="file that the lines are appended to")
    parser.add_argument("--steps", type=int, default=6000, help="of trials that name none")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--limit", type=float, default=300, help="seconds of trials without one")
    parser.add_argument("--at-once", type=int, default=1, help="processes at a time")
    parser.add_argument("--commit", help="of a package that was not installed from a repository")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_trial(options.data, json.loads(options.trials))))
        return
    if options.out is None:
        parser.error("give --out, the file that the lines are appended to")
    names = ("steps", "batch_size", "seed", "limit", "commit")
    usual = {name: getattr(options, name) for name in names}
    trials = [{"options": {}, **usual, **t} for t in json.loads(Path(options.trials).read_text())]
    run_all(options.data, trials, options.out, options.at_once)


if __name__ == "__main__":
    main()
