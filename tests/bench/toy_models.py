"""Forecasters such as a user might write, good and bad; none of them takes time."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from powerphase.models.framework import (
    Domain,
    Losses,
    Network,
    NetworkConfig,
    NeuralForecaster,
    Progress,
    TrainingConfig,
)
from powerphase.scenarios import Context, Scenarios, Training

DAY = 96


class Steady:
    """Yesterday, a little louder or softer by the seed."""

    def __init__(self, seed: int = 42) -> None:
        self.seed = seed
        self.config = {"width": 0.01}

    def fit(self, train: Training) -> None: ...

    def predict(self, context: Context) -> Scenarios:
        yesterday = context.past[:, -DAY:]
        width = self.config["width"] * torch.linspace(-1, 1, 4 + self.seed % 3)
        values = yesterday[:, None] * (1 + width[None, :, None, None])
        return Scenarios.equal(values.to(torch.float32))


class Louder(Steady):
    """Another model with the same name."""

    name = "steady"

    def __init__(self, seed: int = 42) -> None:
        super().__init__(seed)
        self.config = {"width": 0.02}


class Plain(Steady):
    """The same model without a seed."""

    def __init__(self) -> None:
        super().__init__(0)


class Forgetful(Steady):
    """Takes a seed and does not store it."""

    def __init__(self, seed: int = 42) -> None:
        super().__init__(0)


class Raises(Plain):
    def fit(self, train: Training) -> None:
        print("about to fail")  # noqa: T201
        raise RuntimeError("no such luck")


class Asks(Plain):
    def fit(self, train: Training) -> None:
        input("how loud? ")


class Leaves(Plain):
    def __init__(self) -> None:
        sys.exit(0)


class Impostor(Plain):
    name = "last-week"


class Hangs(Plain):
    def fit(self, train: Training) -> None:
        time.sleep(600)


class NotNumbers(Plain):
    def predict(self, context: Context) -> Scenarios:
        return Scenarios.equal(torch.full((1, 2, DAY, context.layout.n_channels), torch.nan))


class WrongShape(Plain):
    def predict(self, context: Context) -> Scenarios:
        return Scenarios.equal(torch.zeros((1, 2, DAY - 1, context.layout.n_channels)))


class Restless(Plain):
    """Changes its config when it is fitted."""

    def fit(self, train: Training) -> None:
        self.config = {"width": 0.02}


class Exits(Plain):
    def predict(self, context: Context) -> Scenarios:
        os._exit(3)


class IsKilled(Plain):
    def predict(self, context: Context) -> Scenarios:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class NoForecaster:
    def fit(self, train: Training) -> None: ...


class Needy(Steady):
    def __init__(self, size: int) -> None:
        super().__init__(size)


class Toy(Network):
    """Three lines through the last day, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(DAY, 3)
        self.dropout = nn.Dropout(0.3)

    def forward(self, context: Context, target: Tensor) -> Losses:
        error = (self._values(context) - target.unsqueeze(1)).abs().mean()
        return Losses(error, {"error": error.detach()})

    def scenarios(self, context: Context, seed: int = 0) -> Scenarios:
        return Scenarios.equal(self._values(context))

    def _values(self, context: Context) -> Tensor:
        day = context.past[:, -DAY:]
        level = self.line(self.dropout(day).movedim(1, 2))  # "B C M"
        return day.unsqueeze(1) + level.movedim(2, 1).unsqueeze(2)


BUDGET = TrainingConfig(epochs=4, batches_per_epoch=3, batch_size=4)


@dataclass(frozen=True)
class ToyNetConfig(NetworkConfig):
    training: TrainingConfig = BUDGET


class ToyNet(NeuralForecaster):
    """A user's network."""

    name = "toy-net"
    config_type = ToyNetConfig

    def make_network(self, domain: Domain) -> Network:
        return Toy()

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        return 0.0


class Unwritten(NeuralForecaster):
    """A network that defines nothing yet."""


class SlowNet(ToyNet):
    """A network with slow steps, so that it can be interrupted in the middle."""

    name = "slow-net"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        report = self.on_progress or (lambda now: None)

        def slow_report(now: Progress) -> None:
            time.sleep(0.05)
            report(now)

        self.on_progress = slow_report


class Fateful(ToyNet):
    """In the middle of its first training, it kills its parent process."""

    name = "fateful"
    deaths = 1

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        inner = self.on_progress or (lambda now: None)

        def report(now: Progress) -> None:
            inner(now)
            if now.step == 7 and self.run is not None:
                died = len(list(self.run.glob("died-*")))
                if died < self.deaths:
                    (self.run / f"died-{died}").touch()
                    os.kill(os.getppid(), signal.SIGKILL)
                    time.sleep(60)

        self.on_progress = report


class Fatal(Fateful):
    """Kills its parent process in every training."""

    name = "fatal"
    deaths = 100
