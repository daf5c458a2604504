"""Forecasts of load, sun and wind as inputs of a network."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.errors import ForecastError
from powerphase.scenarios import Batches, Context, mean_and_size

QUANTITIES = ("load", "solar", "wind")
"""What informed networks read; a quantity that a task does not have is always average."""

MEASURED_BATCHES = 20
"""The batches from which means and sizes are measured."""


class KnownForecasts(nn.Module):
    """The forecasts of windows, standardised over a training; average where nothing was issued."""

    mean: Tensor
    size: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(QUANTITIES)))
        self.register_buffer("size", torch.ones(len(QUANTITIES)))

    @torch.no_grad()
    def measure(self, batches: Batches) -> None:
        """Measure mean and size of each quantity in the first batches."""
        parts = [self._read(batches[number][0]) for number in range(MEASURED_BATCHES)]
        mean, size = mean_and_size(torch.cat([part.flatten(0, 1) for part in parts]))
        self.mean.copy_(mean)
        self.size.copy_(size)

    def forward(self, context: Context) -> Float[Tensor, "B steps 3"]:
        """The forecasts of each step of context and horizon."""
        values = (self._read(context).to(self.mean) - self.mean) / self.size
        return values.nan_to_num().to(context.past)

    def _read(self, context: Context) -> Float[Tensor, "B steps 3"]:
        """The forecasts in their unit; NaN where there are none."""
        known = context.known
        if known is None:
            raise ForecastError(
                "the model reads forecasts of load, sun and wind, and the task has none; give it "
                "some with --known, or leave the option informed out"
            )
        columns = [known.column(name) for name in QUANTITIES]
        missing = torch.full_like(known.values[..., 0], torch.nan)
        return torch.stack([missing if k is None else known.values[..., k] for k in columns], -1)
