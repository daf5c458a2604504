"""A step of TimePrism: ours against the form that holds every hypothesis, in the same run.

    python benchmarks/timeprism.py                          40 channels in 16 windows
    python benchmarks/timeprism.py --channels 80 --json step.json

Both have the same weights and windows, and a step is forward, backward and optimiser. The other
form is the oracle of the network's tests, which makes a tensor of windows × hypotheses × steps ×
channels. Time is the best of some steps; memory is what a step holds beyond what was there before.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # the straightforward version is in the tests

from powerphase.cost import hardware, peak_memory_gib, reset_peak_memory
from powerphase.models.framework.stepping import make_optimiser
from powerphase.models.timeprism.config import TimePrismConfig
from powerphase.models.timeprism.network import TimePrismNetwork
from tests.models.timeprism import straightforward

CONTEXT, HORIZON = 672, 96
CPU = torch.device("cpu")

Loss = Callable[[TimePrismNetwork, Tensor, Tensor], Tensor]
FORMS: dict[str, Loss] = {
    "ours": lambda network, past, target: network.losses(past, target).loss,
    "every hypothesis": lambda network, past, target: straightforward.loss(
        network, past, target, network.config.temperature
    ),
}


def windows(count: int, channels: int) -> tuple[Tensor, Tensor]:
    """Random daily waves of different sizes."""
    generator = torch.Generator().manual_seed(0)
    step = torch.arange(CONTEXT + HORIZON)[:, None]
    phase, noise = (torch.randn(count, n, channels, generator=generator) for n in (1, len(step)))
    values = 2 + torch.sin(2 * torch.pi * step / 96 + phase) + 0.1 * noise
    past, target = values.split([CONTEXT, HORIZON], dim=1)
    return past, target


def measured(
    form: Loss, config: TimePrismConfig, given: tuple[Tensor, Tensor], repeats: int
) -> dict[str, float]:
    """The first loss, the best time of a step [s], and what it holds [GiB]."""
    torch.manual_seed(0)
    network = TimePrismNetwork(config, CONTEXT, HORIZON)
    optimiser = make_optimiser(network, config.training, CPU)
    losses, seconds = [], []
    reset_peak_memory()
    before = peak_memory_gib(CPU) or 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = form(network, *given)
        loss.backward()
        optimiser.step()
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
        del loss
    memory = (peak_memory_gib(CPU) or 0.0) - before
    return {"loss": losses[0], "seconds": min(seconds), "memory_gib": memory}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--channels", type=int, default=40)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--hypotheses", type=int, default=625)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    options = parser.parse_args()
    config = TimePrismConfig(hypotheses=options.hypotheses)
    given = windows(options.windows, options.channels)
    measured(FORMS["ours"], config, windows(1, 2), 1)  # what torch sets up once is nobody's
    found = {name: measured(form, config, given, options.repeats) for name, form in FORMS.items()}
    print(f"{hardware(CPU)}, {torch.get_num_threads()} threads; {options.channels} channels in "
          f"{options.windows} windows, {options.hypotheses} hypotheses")  # fmt: skip
    row, ours = "{:<18}{:>9}{:>8}{:>12}{:>8}{:>14}", found["ours"]
    print(row.format("", "seconds", "ratio", "memory", "ratio", "first loss"))
    for name, one in found.items():
        ratios = [f"{one[what] / ours[what]:.1f}x" for what in ("seconds", "memory_gib")]
        memory = f"{one['memory_gib']:.3f} GiB"
        cells = (f"{one['seconds']:.2f}", ratios[0], memory, ratios[1], f"{one['loss']:.6g}")
        print(row.format(name, *cells))
    if options.json is not None:
        about = {"hardware": hardware(CPU), "threads": torch.get_num_threads()}
        about |= {name: value for name, value in vars(options).items() if name != "json"}
        options.json.write_text(json.dumps({**about, "forms": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
