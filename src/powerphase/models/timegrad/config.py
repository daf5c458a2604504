"""Configuration of TimeGrad; the defaults are those of the reference, without its quirks."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from powerphase.models.framework.configuration import SHORT, AnyValue, Variants
from powerphase.models.framework.ops import REFERENCE_SCALE
from powerphase.models.recurrent.config import REFERENCE_INPUTS, StandardisedConfig


@dataclass(frozen=True)
class TimeGradConfig(StandardisedConfig):
    """Settings of the encoder, the diffusion, the noise network and sampling."""

    condition: int = 100
    """Width of the linear layer between the LSTM and the noise network."""
    diffusion_steps: int = 100
    least_noise: float = 1e-4
    """Variance that the first diffusion step adds; it grows linearly to `most_noise`."""
    most_noise: float = 0.1
    blocks: int = 8
    """Residual blocks of the noise network."""
    width: int = 8
    """Features per channel in the noise network."""
    frequencies: int = 16
    """Frequencies of the sinusoidal embedding of the diffusion step."""
    embedding: int = 64
    """Width of the layers that read the embedding."""
    rows: int | None = None
    """Number of random steps of a batch's windows to train the noise network on; None for all."""
    paths: int = 100

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "tuned": {
                "lag_inputs": 300.0,
                "standardise": True,
                "noise": True,
                "rows": 4096,
                "training.learning_rate": 3e-3,
            },
            "reference": REFERENCE_INPUTS,
            "reference-scale": REFERENCE_SCALE,
            "subsampled": {"rows": AnyValue(4096)},
            **SHORT,
        }
    )

    @property
    def dilations(self) -> tuple[int, ...]:
        """Dilations of the convolutions in the blocks: 1 and 2 in turn."""
        return tuple(1 + number % 2 for number in range(self.blocks))

    def _rules(self) -> list[tuple[bool, str]]:
        sizes = (self.condition, self.diffusion_steps, self.blocks, self.width, self.frequencies)
        return [
            *super()._rules(),
            (
                min(*sizes, self.embedding) < 1,
                "condition, diffusion_steps, blocks, width, frequencies and embedding must be 1 or "
                "more",
            ),
            (
                not 0 < self.least_noise <= self.most_noise < 1,
                "least_noise and most_noise must be between 0 and 1, in this order",
            ),
            (self.rows is not None and self.rows < 1, "rows must be 1 or more"),
            (self.paths < 1, "paths must be 1 or more"),
        ]
