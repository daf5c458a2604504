"""The budget of a training, and how its steps are taken."""

from dataclasses import dataclass
from typing import Literal

from powerphase.errors import ConfigError


@dataclass(frozen=True)
class TrainingConfig:
    """The budget of a training, and how its steps are taken."""

    epochs: int = 200
    batches_per_epoch: int = 30
    batch_size: int | None = None
    """None: what the model takes for the grid."""
    learning_rate: float = 1e-3
    weight_decay: float = 1e-6
    clip_norm: float = 10.0
    patience: int = 10
    """Epochs without a better validation before the learning rate is lowered."""
    factor: float = 0.5
    precision: Literal["float32", "tf32", "bfloat16"] = "tf32"
    """Of matrix products, and of what a model makes only for them; all else is float32. tf32 is for
    GPUs, on a CPU it is float32."""

    def __post_init__(self) -> None:
        rules = (
            (min(self.epochs, self.batches_per_epoch) < 1, "epochs and batches_per_epoch must be 1 "
             "or more"),
            (self.batch_size is not None and self.batch_size < 1, "batch_size must be 1 or more"),
            (self.learning_rate <= 0 or self.clip_norm <= 0, "learning_rate and clip_norm must be "
             "above 0"),
            (self.weight_decay < 0 or self.patience < 0, "weight_decay and patience must be 0 or "
             "more"),
            (not 0 < self.factor < 1, "factor must be between 0 and 1"),
        )  # fmt: skip
        problems = [text for fails, text in rules if fails]
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def steps(self) -> int:
        """Number of steps in all."""
        return self.epochs * self.batches_per_epoch
