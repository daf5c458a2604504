"""Compare a training step of TimePrism with the form that holds every hypothesis.

    python benchmarks/timeprism.py                          40 channels in 16 windows
    python benchmarks/timeprism.py --channels 80 --json step.json

Both have the same weights and windows; a step is forward pass, backward pass and optimiser. The
other form is the oracle of the network's tests, which holds a tensor of windows × hypotheses ×
steps × channels. Time is the best of several steps; memory is the increase during the steps.
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
from powerphase.models.timeprism import TimePrismConfig, TimePrismNetwork
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


def measure(
    form: Loss, config: TimePrismConfig, batch: tuple[Tensor, Tensor], repeats: int
) -> dict[str, float]:
    """The first loss, the best time of a step [s], and its memory [GiB]."""
    torch.manual_seed(0)
    network = TimePrismNetwork(config, CONTEXT, HORIZON)
    optimiser = make_optimiser(network, config.training, CPU)
    losses, seconds = [], []
    reset_peak_memory()
    before = peak_memory_gib(CPU) or 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = form(network, *batch)
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
    batch = windows(options.windows, options.channels)
    measure(FORMS["ours"], config, windows(1, 2), 1)  # warm up torch
    results = {name: measure(form, config, batch, options.repeats) for name, form in FORMS.items()}
    print(f"{hardware(CPU)}, {torch.get_num_threads()} threads; {options.channels} channels in "
          f"{options.windows} windows, {options.hypotheses} hypotheses")  # fmt: skip
    row, ours = "{:<18}{:>9}{:>8}{:>12}{:>8}{:>14}", results["ours"]
    print(row.format("", "seconds", "ratio", "memory", "ratio", "first loss"))
    for name, result in results.items():
        ratios = [f"{result[what] / ours[what]:.1f}x" for what in ("seconds", "memory_gib")]
        memory = f"{result['memory_gib']:.3f} GiB"
        cells = (f"{result['seconds']:.2f}", ratios[0], memory, ratios[1], f"{result['loss']:.6g}")
        print(row.format(name, *cells))
    if options.json is not None:
        about = {"hardware": hardware(CPU), "threads": torch.get_num_threads()}
        about |= {name: value for name, value in vars(options).items() if name != "json"}
        options.json.write_text(json.dumps({**about, "forms": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
