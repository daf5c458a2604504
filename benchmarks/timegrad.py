"""TimeGrad's noise network: ours against the reference's, with the same weights, in one run.

    python benchmarks/timegrad.py                   a grid of 118 buses on the CPU
    python benchmarks/timegrad.py --buses 30 --json

The reference evaluates the whole noise network, including the conditioner, at each of the 100
diffusion steps, and keeps everything for the backward pass. Ours computes the conditioner once for
all 100 steps and works piece by piece. Memory is what a call takes beyond its inputs.
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
from powerphase.models.timegrad import (
    Convolution,
    Denoiser,
    NoisyRows,
    Pieces,
    Schedule,
    TimeGradConfig,
    noise_loss,
    predict_noise,
)

CPU = torch.device("cpu")


def circular(values: Tensor, layer: Convolution, padding: int) -> Tensor:
    """A circular convolution along channels by PyTorch."""
    if padding:
        values = F.pad(values, (padding, padding), mode="circular")
    return F.conv1d(values, layer.weight, layer.bias, dilation=layer.dilation)


def plain_noise(denoiser: Denoiser, noisy: Tensor, condition: Tensor, step: Tensor) -> Tensor:
    """The noise network as in the reference: all channels at once, all inputs each time."""
    embedding = F.silu(denoiser.read_waves(denoiser.waves.to(noisy)[step]))
    embedding = denoiser.tell(F.silu(denoiser.read_more(embedding)))
    embedding = embedding.unflatten(1, (len(denoiser.blocks), -1))
    conditioner = denoiser.conditioner(condition)[:, None]
    features = F.leaky_relu(circular(noisy[:, None], denoiser.enter, 2), 0.4)
    skips = []
    blocks: Any = denoiser.blocks
    for number, block in enumerate(blocks):
        inputs = features + embedding[:, number, :, None]
        mixed = circular(inputs, block.mix, 1 + number % 2) + circular(conditioner, block.told, 2)
        gate, content = mixed.chunk(2, dim=1)
        gated = torch.sigmoid(gate) * torch.tanh(content)
        change, skip = F.leaky_relu(circular(gated, block.leave, 0), 0.4).chunk(2, dim=1)
        features = (features + change) / sqrt(2)
        skips.append(skip)
    collected = torch.stack(skips).sum(0) / sqrt(len(skips))
    collected = F.leaky_relu(circular(collected, denoiser.collect, 0), 0.4)
    return circular(collected, denoiser.leave, 0)[:, 0]


class Setting:
    """A noise network with random rows.

    Args:
        n_buses: buses of the grid.
        rows: windows × paths to sample, or windows × steps to train on.
    """

    def __init__(self, n_buses: int, rows: int) -> None:
        torch.manual_seed(0)
        config = TimeGradConfig()
        self.n_channels = KINDS * n_buses
        self.denoiser = Denoiser(config, self.n_channels)
        torch.nn.init.normal_(self.denoiser.leave.weight, std=0.1)
        self.schedule = Schedule(config.diffusion_steps, config.least_noise, config.most_noise)
        self.condition = torch.randn(rows, config.condition)
        self.noise = torch.randn(rows, self.n_channels)
        self.step = torch.randint(config.diffusion_steps, (rows,))
        self.pieces = Pieces.of(self.denoiser, self.n_channels, None, "cpu")

    @torch.no_grad()
    def sample_plain(self) -> Tensor:
        """Sample one step, with the whole network at every diffusion step."""

        def predict(values: Tensor, step: int) -> Tensor:
            return plain_noise(
                self.denoiser, values, self.condition, self.step.new_full((1,), step)
            )

        return self.schedule.sample(predict, self.noise, lambda: self.noise)

    @torch.no_grad()
    def sample(self) -> Tensor:
        """The same, with everything constant computed once."""
        conditioner, table = (
            self.denoiser.conditioner(self.condition),
            self.denoiser.step_embeddings(),
        )

        def predict(values: Tensor, step: int) -> Tensor:
            embedding = table[step : step + 1]
            return predict_noise(self.denoiser, values, conditioner, embedding, self.pieces)

        return self.schedule.sample(predict, self.noise, lambda: self.noise)

    def gradient_plain(self) -> Tensor:
        """The gradient of one layer, with everything kept for the backward pass."""
        noise = plain_noise(self.denoiser, 0.5 * self.noise, self.condition, self.step)
        return self._gradient((noise - self.noise).square().mean())

    def gradient(self) -> Tensor:
        """The same, piece by piece."""
        noisy = NoisyRows(0.5 * self.noise, self.noise)
        conditioner = self.denoiser.conditioner(self.condition)
        embeddings = self.denoiser.step_embeddings()[self.step]
        loss = noise_loss(self.denoiser, noisy, conditioner, embeddings, self.pieces)
        return self._gradient(loss)

    def _gradient(self, loss: Tensor) -> Tensor:
        self.denoiser.zero_grad()
        loss.backward()
        gradient = self.denoiser.narrow.weight.grad
        assert gradient is not None
        return gradient


def measure(call: Callable[[], Tensor], repeats: int) -> tuple[Tensor, float, float]:
    """The result, the best time [s], and the memory of the last call [GiB]."""
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
    """A row of the table: times, memory, and the difference of the results."""
    actual, seconds, memory = measure(ours, 2)
    expected, plain_seconds, plain_memory = measure(theirs, 2)
    return {
        "what": name,
        "seconds": seconds,
        "reference_seconds": plain_seconds,
        "time_ratio": plain_seconds / seconds,
        "memory_gib": memory,
        "reference_memory_gib": plain_memory,
        "difference": float((actual - expected).abs().max() / expected.abs().max()),
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
        compare(f"a step of {options.paths} paths", paths.sample, paths.sample_plain),
        compare(f"gradients of {options.rows} rows", rows.gradient, rows.gradient_plain),
    ]
    if options.json:
        print(json.dumps({"hardware": hardware(CPU), "buses": options.buses, "table": table}))
        return
    print(f"{hardware(CPU)}; {options.buses} buses; the reference / ours")
    row = "{:<24}{:>20}{:>8}{:>24}{:>12}"
    print(row.format("", "seconds", "ratio", "memory [GiB]", "difference"))
    for result in table:
        seconds = f"{result['reference_seconds']:.2f} / {result['seconds']:.2f}"
        memory = f"{result['reference_memory_gib']:.3f} / {result['memory_gib']:.3f}"
        ratio = f"{result['time_ratio']:.1f}x"
        print(row.format(result["what"], seconds, ratio, memory, f"{result['difference']:.1e}"))


if __name__ == "__main__":
    main()
