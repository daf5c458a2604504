"""TimeGrad's noise network: ours against the reference's way, on the same weights, in one run.

    python benchmarks/timegrad.py                   a grid of 118 buses on the CPU
    python benchmarks/timegrad.py --buses 30 --json

The reference asks the whole noise network, with all that tells it of the window, at every one of
100 diffusion steps, and keeps all of it for the backward pass. Ours makes the conditioner once for
the 100 and works piece by piece. Memory is what a call holds beyond its input.
"""

import argparse
import json
import time
from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import KINDS
from powerphase.cost import hardware, peak_memory_gib, reset_peak_memory
from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.convolution import Filter
from powerphase.models.timegrad.denoiser import Denoiser
from powerphase.models.timegrad.objective import Noisy, Pieces, mean_error, predicted
from powerphase.models.timegrad.schedule import Schedule

CPU = torch.device("cpu")


def circular(values: Tensor, layer: Filter, padding: int) -> Tensor:
    """A convolution round the channels, as PyTorch has it."""
    if padding:
        values = F.pad(values, (padding, padding), mode="circular")
    return F.conv1d(values, layer.weight, layer.bias, dilation=layer.dilation)


def plain_noise(denoiser: Denoiser, noisy: Tensor, known: Tensor, step: Tensor) -> Tensor:
    """The noise network as the reference asks it: all channels at once, all inputs each time."""
    read = F.silu(denoiser.read_waves(denoiser.waves.to(noisy)[step]))
    told = denoiser.tell(F.silu(denoiser.read_more(read))).unflatten(1, (len(denoiser.blocks), -1))
    conditioner = denoiser.conditioner(known)[:, None]
    features = F.leaky_relu(circular(noisy[:, None], denoiser.enter, 2), 0.4)
    skips = []
    for number, block in enumerate(denoiser.blocks):
        moved = features + told[:, number, :, None]
        mixed = circular(moved, block.mix, 1 + number % 2) + circular(conditioner, block.told, 2)
        gate, content = mixed.chunk(2, dim=1)
        gated = torch.sigmoid(gate) * torch.tanh(content)
        change, skip = F.leaky_relu(circular(gated, block.leave, 0), 0.4).chunk(2, dim=1)
        features = (features + change) / sqrt(2)
        skips.append(skip)
    collected = torch.stack(skips).sum(0) / sqrt(len(skips))
    collected = F.leaky_relu(circular(collected, denoiser.collect, 0), 0.4)
    return circular(collected, denoiser.leave, 0)[:, 0]


class Setting:
    """A noise network, and rows for it.

    Args:
        n_buses: of a grid.
        rows: windows × paths to sample, or windows × steps to learn from.
    """

    def __init__(self, n_buses: int, rows: int) -> None:
        torch.manual_seed(0)
        config = TimeGradConfig()
        self.n_channels = KINDS * n_buses
        self.denoiser = Denoiser(config, self.n_channels)
        torch.nn.init.normal_(self.denoiser.leave.weight, std=0.1)
        self.schedule = Schedule(config.diffusion_steps, config.least_noise, config.most_noise)
        self.known = torch.randn(rows, config.condition)
        self.noise = torch.randn(rows, self.n_channels)
        self.step = torch.randint(config.diffusion_steps, (rows,))
        self.pieces = Pieces.of(self.denoiser, self.n_channels, None, "cpu")

    @torch.no_grad()
    def sample_plainly(self) -> Tensor:
        """One horizon step, with the whole network at every diffusion step."""

        def predict(values: Tensor, step: int) -> Tensor:
            return plain_noise(self.denoiser, values, self.known, self.step.new_full((1,), step))

        return self.schedule.sample(predict, self.noise, lambda: self.noise)

    @torch.no_grad()
    def sample(self) -> Tensor:
        """The same, with what does not change made once."""
        conditioner, table = self.denoiser.conditioner(self.known), self.denoiser.steps()

        def predict(values: Tensor, step: int) -> Tensor:
            here = table[step : step + 1]
            return predicted(self.denoiser, values, conditioner, here, self.pieces)

        return self.schedule.sample(predict, self.noise, lambda: self.noise)

    def learn_plainly(self) -> Tensor:
        """Loss and gradients, with everything kept for them; the gradient of one layer."""
        made = plain_noise(self.denoiser, 0.5 * self.noise, self.known, self.step)
        return self._gradient((made - self.noise).square().mean())

    def learn(self) -> Tensor:
        """The same, piece by piece."""
        given = Noisy(0.5 * self.noise, self.noise)
        conditioner, added = self.denoiser.conditioner(self.known), self.denoiser.steps()[self.step]
        return self._gradient(mean_error(self.denoiser, given, conditioner, added, self.pieces))

    def _gradient(self, loss: Tensor) -> Tensor:
        self.denoiser.zero_grad()
        loss.backward()
        found = self.denoiser.narrow.weight.grad
        assert found is not None
        return found


def measured(call: Callable[[], Tensor], repeats: int) -> tuple[Tensor, float, float]:
    """The result, the best time [s], and the memory that the last call took [GiB]."""
    best = float("inf")
    for _ in range(repeats):
        reset_peak_memory()
        before = peak_memory_gib(CPU) or 0.0
        start = time.perf_counter()
        result = call()
        best = min(best, time.perf_counter() - start)
        memory = (peak_memory_gib(CPU) or 0.0) - before
    return result, best, memory


def compare(name: str, ours: Callable[[], Tensor], theirs: Callable[[], Tensor]) -> dict[str, Any]:
    """One row: times, memory, and how far the results are apart."""
    found, seconds, memory = measured(ours, 2)
    wanted, plain_seconds, plain_memory = measured(theirs, 2)
    return {
        "what": name,
        "seconds": seconds,
        "reference_seconds": plain_seconds,
        "time_ratio": plain_seconds / seconds,
        "memory_gib": memory,
        "reference_memory_gib": plain_memory,
        "difference": float((found - wanted).abs().max() / wanted.abs().max()),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--buses", type=int, default=118)
    parser.add_argument("--paths", type=int, default=20)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    paths, rows = Setting(options.buses, options.paths), Setting(options.buses, options.rows)
    table = [
        compare(f"a step of {options.paths} paths", paths.sample, paths.sample_plainly),
        compare(f"slopes of {options.rows} rows", rows.learn, rows.learn_plainly),
    ]
    if options.json:
        print(json.dumps({"hardware": hardware(CPU), "buses": options.buses, "table": table}))
        return
    print(f"{hardware(CPU)}; {options.buses} buses; the reference's way against ours")
    row = "{:<24}{:>20}{:>8}{:>24}{:>12}"
    print(row.format("", "seconds", "ratio", "memory [GiB]", "difference"))
    for one in table:
        seconds = f"{one['reference_seconds']:.2f} / {one['seconds']:.2f}"
        memory = f"{one['reference_memory_gib']:.3f} / {one['memory_gib']:.3f}"
        ratio = f"{one['time_ratio']:.1f}x"
        print(row.format(one["what"], seconds, ratio, memory, f"{one['difference']:.1e}"))


if __name__ == "__main__":
    main()
