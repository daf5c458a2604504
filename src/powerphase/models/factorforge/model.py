"""FactorForge as a forecaster: what ties it to training records, folders and windows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float64

from powerphase.cost import Stopwatch, commit, hardware, peak_memory_gib, reset_peak_memory
from powerphase.errors import CheckpointError, TrainingError
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.models.factorforge.factors import OnBlock, find_factors
from powerphase.models.factorforge.forge import Forge, time_of_day
from powerphase.models.factorforge.outlook import checked_origins, learn_outlook
from powerphase.models.framework.device import world_size
from powerphase.models.framework.run import RunFolder
from powerphase.models.framework.saved import SavedForecaster
from powerphase.models.framework.training import CheckpointStore
from powerphase.scenarios import Context, Scenarios, Training

CPU = torch.device("cpu")


class FactorForge(SavedForecaster):
    """Forecasts a few factors by regression, and tells what every channel does with them.

    Nothing is iterated: a fit is four readings of the record and some small regressions.

    Args:
        config: all constants.
        seed: fixes the random directions in which the search for factors begins, and draws.
        run: a folder for what is fitted.
        on_block: called as the record is read.
    """

    name: ClassVar[str] = "factorforge"
    config_type: ClassVar[Any] = FactorForgeConfig
    counts: ClassVar[str] = "steps read"
    """What `on_block` is told the number of."""

    def __init__(
        self,
        config: FactorForgeConfig | None = None,
        *,
        seed: int = 42,
        run: str | Path | None = None,
        on_block: OnBlock | None = None,
    ) -> None:
        super().__init__(config, seed, run)
        self.on_block = on_block
        self.forge: Forge | None = None
        self.series: Float64[np.ndarray, "S K"] | None = None
        """The factors of the training record; a loaded model does not have them."""

    @property
    def is_fitted(self) -> bool:
        """Whether there are factors to forecast with."""
        return self.forge is not None

    @property
    def n_parameters(self) -> int | None:
        """Number of fitted numbers."""
        if self.forge is None:
            return None
        return sum(tensor.numel() for tensor in self.forge.packed()[0].values())

    def answer(self, context: Context) -> Scenarios:
        """The scenarios of these windows."""
        assert self.forge is not None, "`predict` asks only what is fitted"
        future, count = self.forge.future(context), self.config.scenarios
        if self.config.coupling == "draws":
            return self.forge.draws(future, context.future_time[:, 0], count, self.seed)
        return self.forge.fan(future, count)

    def follow(self, drivers: Mapping[str, Float[np.ndarray, " S"]]) -> None:
        """Note how each factor correlates with named series of the same steps, for `info`."""
        if self.series is None or self.outcome is None:
            return
        moving = {name: driver for name, driver in drivers.items() if np.ptp(driver) > 0}
        for factor, fact in zip(self.series.T, self.outcome["factors"]["each"], strict=True):
            pairs = {name: np.corrcoef(factor, driver)[0, 1] for name, driver in moving.items()}
            fact["follows"] = {name: float(found) for name, found in pairs.items()}
        if self.run is not None:
            RunFolder.open(self.run).finish(self.outcome)

    def _prepare(self, train: Training) -> None:
        """Refuse what is too short to learn from, before the record is read; forget older fits."""
        self.forge = self.series = self.outcome = None
        windows = train.validation
        size = (len(train.time), windows.context_steps, windows.horizon)
        checked_origins(*size, self.config)
        if world_size() > 1:
            raise TrainingError("factorforge is fitted by one process; start it without torchrun")

    def _learn(self, train: Training, keeper: CheckpointStore) -> dict[str, Any]:
        watch, windows = Stopwatch(), train.validation
        reset_peak_memory()
        with watch.running():
            factors, series = find_factors(train, self.config, self.seed, self.on_block)
            size = (windows.context_steps, windows.horizon)
            outlook = learn_outlook(series, train.time, *size, self.config)
            start_s = time_of_day(train.time[0])  # as `learn_outlook` has them
            packed = Forge(factors, outlook, start_s).packed()
            keeper.keep_best(*packed)
            # As it is loaded: what lies otherwise in memory is summed, and rounded, otherwise.
            self.forge, self.series = Forge.unpacked(self.config, *packed), series
        return {
            "steps": None,
            "train_s": watch.seconds,
            "peak_memory_gib": peak_memory_gib(CPU),
            "hardware": hardware(CPU),
            "torch": torch.__version__,
            "commit": commit(),
            "factors": self.forge.facts(),
        }

    def _take(self, folder: RunFolder) -> None:
        if folder.header.outcome is None:
            raise CheckpointError(f"{folder.path}: the fit was interrupted; fit it again")
        self.forge = Forge.unpacked(self.config, *folder.best())
        self.outcome = folder.header.outcome
