"""FactorForge as a forecaster: fitting to a training record, saving, loading and predicting."""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float64

from powerphase.axes import KINDS, VARIABLES
from powerphase.cost import Stopwatch, commit, hardware, peak_memory_gib, reset_peak_memory
from powerphase.errors import CheckpointError, ForecastError, TrainingError
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.models.factorforge.factor_forecaster import fit_factor_forecaster, window_origins
from powerphase.models.factorforge.factors import OnBlock, find_factors
from powerphase.models.factorforge.fitted import (
    AXES,
    INFORMED_AXES,
    FittedFactorForge,
    channel_blocks,
)
from powerphase.models.factorforge.past_days import HeldOutDays
from powerphase.models.framework.base import Prediction
from powerphase.models.framework.checkpoint import check_axes, state_errors
from powerphase.models.framework.device import world_size
from powerphase.models.framework.run import RunFolder
from powerphase.models.framework.saved import SavedForecaster
from powerphase.models.framework.training import CheckpointStore
from powerphase.resolution import DAY_S
from powerphase.scenarios import Context, Training
from powerphase.schema import (
    Schema,
    check,
    integer,
    list_of,
    mapping_of,
    nullable,
    number,
    object_with,
    one_of,
    text,
)

CPU = torch.device("cpu")

FACTS = object_with(
    {"start_s": integer(0, DAY_S - 1), "seasons": one_of([True, False])},
    {
        **{"country": nullable(text()), "zone": text()},  # older fits are of Germany
        "known": list_of(text()),
    },
)
"""What is saved with the tensors."""

FACTOR = dict.fromkeys(("share", "persistence", "error", "strength"), number())
"""What the outcome says of each factor."""


class FactorForge(SavedForecaster):
    """Forecasts a few factors by regression and maps them to every channel.

    A fit is not iterative: it reads the record four times and solves some small regressions.

    Args:
        config: all options.
        seed: fixes the random directions of the search for factors, and random scenarios.
        run: a folder for the fitted state.
        on_block: called with the progress of reading the record.
    """

    name: ClassVar[str] = "factorforge"
    config_type: ClassVar[Any] = FactorForgeConfig
    outcome_schema: ClassVar[Mapping[str, Schema]] = {
        "factors": {
            "each": list_of(object_with(FACTOR, {"follows": mapping_of(number())})),
            "shares": dict.fromkeys(VARIABLES, nullable(number())),
        }
    }
    counts: ClassVar[str] = "steps read"
    """What `on_block` counts."""

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
        self.fitted: FittedFactorForge | None = None
        self.series: Float64[np.ndarray, "S K"] | None = None
        """The factors of the training record; None in a loaded model."""
        self._train: Training | None = None
        self._days: HeldOutDays | None = None

    @property
    def is_fitted(self) -> bool:
        """Whether the model can forecast."""
        return self.fitted is not None

    @property
    def n_parameters(self) -> int | None:
        """Number of fitted numbers."""
        if self.fitted is None:
            return None
        return sum(tensor.numel() for tensor in self.fitted.to_tensors()[0].values())

    @property
    def joint_scenarios(self) -> bool:
        """Whether a scenario is one future; those of a fan are quantiles of every channel."""
        return bool(self.config.coupling != "fan")

    def joint_form(self, count: int) -> "FactorForge":
        """This fitted model with so many ranked scenarios, which are joint."""
        return self.ranked_form(count)

    def ranked_form(self, count: int | None = None) -> "FactorForge":
        """This model, fitted or not, coupled: its quantiles in the rank order of draws."""
        form = copy(self)
        scenarios = count or self.config.scenarios
        form.config = replace(self.config, coupling="ranked", scenarios=scenarios)
        return form

    def fit(self, train: Training) -> None:
        """Fit the model unless it was loaded; days of the record may be read again to predict."""
        super().fit(train)
        self._train, self._days = train, None

    def _held_out_days(self) -> HeldOutDays:
        """The days of the record; their factors are computed when they are first needed."""
        assert self.fitted is not None, "`predict` checks that the model is fitted"
        if self._days is None:
            if self._train is None:
                raise ForecastError(
                    "factorforge with the coupling days reads days of the training record; call "
                    "fit with it, which does not change a loaded model"
                )
            self._days = HeldOutDays(self.fitted, self._train)
        return self._days

    def _predict(self, context: Context) -> Prediction:
        """The scenarios of these windows; in blocks of channels if they are large."""
        assert self.fitted is not None, "`predict` checks that the model is fitted"
        future, count = self.fitted.forecast_factors(context), self.config.scenarios
        size = (len(future) * count, context.horizon, context.layout.n_channels)
        start, blocks = context.future_time[:, 0], channel_blocks(*size)
        if self.config.coupling == "days":
            return self._held_out_days().scenarios(future, start, count, self.seed)
        if self.config.coupling == "ranked":
            ranked = (future, start, count, self.seed, context.layout.bus_type)
            if len(blocks) > 1:
                return self.fitted.ranked_blocks(*ranked, blocks)
            return self.fitted.ranked(*ranked)
        if self.config.coupling == "draws":
            make = partial(self.fitted.draws, future, start, count, self.seed)
        else:
            make = partial(self.fitted.fan, future, count)
        return make() if len(blocks) == 1 else ((block, make(block)) for block in blocks)

    def follow(self, drivers: Mapping[str, Float[np.ndarray, " S"]]) -> None:
        """Save how each factor correlates with named series of the same steps, for `info`."""
        if self.series is None or self.outcome is None:
            return
        moving = {name: driver for name, driver in drivers.items() if np.ptp(driver) > 0}
        for factor, fact in zip(self.series.T, self.outcome["factors"]["each"], strict=True):
            pairs = {name: np.corrcoef(factor, driver)[0, 1] for name, driver in moving.items()}
            fact["follows"] = {name: float(correlation) for name, correlation in pairs.items()}
        if self.run is not None:
            RunFolder.open(self.run).finish(self.outcome)

    def _check(self, train: Training) -> None:
        """Raise if the record is too short, before it is read; discard earlier fits."""
        self.fitted = self.series = self.outcome = None
        windows = train.validation
        size = (windows.context_steps, windows.horizon)
        window_origins(train.time, *size, self.config, train.origin_s)
        if world_size() > 1:
            raise TrainingError("factorforge is fitted by one process; start it without torchrun")

    def _fit(self, train: Training, checkpoints: CheckpointStore) -> dict[str, Any]:
        watch, windows = Stopwatch(), train.validation
        reset_peak_memory()
        with watch.running():
            factors, series = find_factors(train, self.config, self.seed, self.on_block)
            size = (windows.context_steps, windows.horizon)
            start_s, local = train.origin_s, train.layout.calendar
            known = ahead = None
            if self.config.informed:
                origins = window_origins(train.time, *size, self.config, start_s)
                known, ahead = train.known, train.record.known_at(origins, *size, complete=False)
            forecaster = fit_factor_forecaster(
                series, train.time, *size, self.config, start_s, local, known, ahead
            )
            saved = FittedFactorForge(factors, forecaster, start_s).to_tensors()
            checkpoints.save_best(*saved)
            # As a loaded model: another memory layout changes the order, and rounding, of sums.
            self.fitted = FittedFactorForge.from_tensors(self.config, *saved)
            self.series = series
        return {
            "steps": None,
            "train_s": watch.seconds,
            "peak_memory_gib": peak_memory_gib(CPU),
            "hardware": hardware(CPU),
            "torch": torch.__version__,
            "commit": commit(),
            "factors": self.fitted.facts(),
        }

    def _load_state(self, folder: RunFolder) -> None:
        if folder.header.outcome is None:
            raise CheckpointError(f"{folder.path}: the fit was interrupted; fit it again")
        tensors, facts = folder.best()
        domain, source = folder.header.domain, str(folder.weights_file)
        sizes = {"C": KINDS * domain.n_buses, "H": domain.horizon, "slots": domain.steps_per_day}
        check(facts, FACTS, source, CheckpointError, "restore it or train again")
        axes = INFORMED_AXES if "known" in facts else AXES
        check_axes(tensors, axes, sizes, source)
        with state_errors(source):
            self.fitted = FittedFactorForge.from_tensors(self.config, tensors, facts)
            self.fitted.check_inputs(domain.context)
        self.outcome = folder.header.outcome
