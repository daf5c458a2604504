"""The fitted state of FactorForge, and the scenarios that follow from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int, Shaped
from torch import Tensor

from powerphase.axes import KINDS, VARIABLES, P
from powerphase.clock import GERMANY, Calendar
from powerphase.errors import ForecastError
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.models.factorforge.factor_forecaster import FactorForecaster
from powerphase.models.factorforge.factors import Factors
from powerphase.models.factorforge.known_inputs import KnownColumns
from powerphase.models.factorforge.sampling import (
    TINY,
    Excess,
    Normals,
    fill_ranks,
    independent_normals,
    keep_total_power,
    normal_quantiles,
    stratified_normals,
)
from powerphase.resolution import time_of_day
from powerphase.scenarios import Context, Scenarios
from powerphase.seeds import stream

AXES = {
    **{"mean": "C", "readout": "C K", "loading": "K C", "noise": "levels C", "restless": "R C"},
    **{"persistence": "K", "share": "K", "strength": "K"},
    **{"calendar": "slots W K", "weights": "H F K", "errors": "days H K"},
}
"""The axes of the tensors in a file."""

INFORMED_AXES = AXES | {"calendar": "slots W X", "known_mean": "D", "known_size": "D"}
"""The same of a fit with known forecasts."""

EVERY = slice(None)

BLOCK_BYTES = 2**28
"""Size of the scenarios that are drawn at a time. The random numbers of a larger forecast depend on
it: each block has its own."""

KEPT_BYTES = 2**30
"""Size of the ranked scenarios of which all blocks are in memory together."""

Ranked = tuple[Float32[Tensor, "M H C"], Float32[Tensor, "M H C"], Float32[Tensor, "H C"]]
"""Quantiles in the rank order of draws, the draws, and the deviation of the channels."""
Deviating = tuple[Float32[Tensor, "M H C"], Float32[Tensor, "H C"]]
"""Ranked scenarios and the deviation of their channels."""

FORECASTER_ARRAYS = ("calendar", "weights", "errors", "strength")
"""The arrays of a `FactorForecaster` in a file."""


@dataclass(frozen=True, eq=False)
class FittedFactorForge:
    """Factors, the forecaster of the factors, and the time of day at which windows start."""

    factors: Factors
    forecaster: FactorForecaster
    start_s: int
    """The time of day at which windows start, in seconds, UTC."""

    def forecast_factors(self, context: Context) -> Float32[Tensor, "B H K"]:
        """The expected factors of these windows."""
        self._check_start(context.future_time[:, 0])
        if context.layout.calendar != self.forecaster.local:
            raise ForecastError(
                f"factorforge was fitted with the calendar {self.forecaster.local}, but the "
                f"context has {context.layout.calendar}; fit it with this one"
            )
        past = self.factors.of(context.past).double().cpu().numpy()
        future = self.forecaster(past, context.time, context.known)
        return torch.from_numpy(future).to(context.past)

    def fan(
        self, future: Float32[Tensor, "B H K"], count: int, channels: slice = EVERY
    ) -> Scenarios:
        """Equally likely scenarios, each of which is one quantile of every channel and step.

        In a scenario the whole grid deviates together, in the direction of the most common error:
        where one channel takes its upper quantile, a channel that falls when the first one rises
        takes its lower quantile.
        """
        quantiles = normal_quantiles(count).to(future)[:, None, None]
        signed = self.sign[channels].to(future) * self.deviation(future, channels)
        middle = self.factors.of_channels(channels).states(future)
        return Scenarios.equal(middle[:, None] + quantiles * signed[:, None])

    def draws(
        self,
        future: Float32[Tensor, "B H K"],
        start: Shaped[np.ndarray, " B"],
        count: int,
        seed: int,
        channels: slice = EVERY,
    ) -> Scenarios:
        """Random scenarios: errors of random held-out days, plus new noise.

        Noise that channels share is drawn once for all of them, so that buses of one scenario are
        consistent with each other.
        """
        samples = []
        for window, moment in zip(future, start, strict=True):
            labels = ("draws", str(moment))
            random = stream(seed, *labels)
            factors = window + self._draw_errors(random, count).to(window)
            normals = _NoiseNormals(independent_normals, random, seed, labels)
            samples.append(self._draw(factors, normals, channels))
        return Scenarios.equal(torch.stack(samples))

    def ranked(
        self,
        future: Float32[Tensor, "B H K"],
        start: Shaped[np.ndarray, " B"],
        count: int,
        seed: int,
        bus_type: Int[np.ndarray, " N"],
    ) -> Scenarios:
        """Joint scenarios: the quantiles of the fan in the rank order of stratified draws.

        The total P of a scenario stays that of its draw; the module `sampling` says why.
        """
        samples = []
        for window, moment in zip(future, start, strict=True):
            filled, draws, deviation = self._rank(window, moment, count, seed, EVERY)
            keep_total_power(filled, draws, deviation, bus_type)
            samples.append(filled)
        return Scenarios.equal(torch.stack(samples))

    def ranked_blocks(
        self,
        future: Float32[Tensor, "B H K"],
        start: Shaped[np.ndarray, " B"],
        count: int,
        seed: int,
        bus_type: Int[np.ndarray, " N"],
        blocks: Sequence[slice],
    ) -> Iterator[tuple[slice, Scenarios]]:
        """The same, one block of buses after another.

        The total P is known only after the last block. Blocks that do not fit into memory together
        are therefore made twice.
        """
        excesses = [Excess() for _ in future]
        made: dict[int, list[Deviating]] = {}
        fits = 4 * count * future[..., 0].numel() * blocks[-1].stop <= KEPT_BYTES

        def make(channels: slice) -> list[Ranked]:
            pairs = zip(future, start, strict=True)
            return [self._rank(*pair, count, seed, channels) for pair in pairs]

        for channels in blocks:
            parts = make(channels)
            for excess, ranked in zip(excesses, parts, strict=True):
                excess.add(*ranked, bus_type[_buses(channels)])
            if fits:
                made[channels.start] = [(filled, deviation) for filled, _, deviation in parts]
            del parts
        for channels in blocks:
            finished = made.pop(channels.start, None)
            if finished is None:
                finished = [(filled, deviation) for filled, _, deviation in make(channels)]
            for excess, pair in zip(excesses, finished, strict=True):
                excess.take_from(*pair, bus_type[_buses(channels)])
            samples = [filled for filled, _ in finished]
            # A stack copies hundreds of megabytes, also of one window.
            values = samples[0][None] if len(samples) == 1 else torch.stack(samples)
            yield channels, Scenarios.equal(values)

    def _rank(
        self,
        window: Float32[Tensor, "H K"],
        moment: np.datetime64,
        count: int,
        seed: int,
        channels: slice,
    ) -> Ranked:
        """Quantiles in the rank order of stratified draws, the draws, and the deviation."""
        labels = ("ranked", str(moment))
        random = stream(seed, *labels)
        factors = window + self._stratify(self._draw_errors(random, count).to(window))
        normals = _NoiseNormals(stratified_normals, random, seed, labels)
        draws = self._draw(factors, normals, channels)
        deviation = self.deviation(window[None], channels)[0]
        mean = self.factors.of_channels(channels).states(window)
        return fill_ranks(draws, mean, deviation), draws, deviation

    def draws_with(
        self,
        quantiles: Float32[Tensor, "B M H K"],
        start: Shaped[np.ndarray, " B"],
        seed: int,
        channels: slice = EVERY,
    ) -> Scenarios:
        """Joint scenarios whose factors take these ascending quantiles, each of them once.

        Which quantiles come together is said by the errors of random held-out days: over factors
        and steps they are in the rank order of these. The noise is that of `ranked`.
        """
        samples = []
        for window, moment in zip(quantiles, start, strict=True):
            labels = ("draws with", str(moment))
            random = stream(seed, *labels)
            errors = self._draw_errors(random, len(window)).to(window.device)
            rank = errors.argsort(dim=0, stable=True).argsort(dim=0)
            normals = _NoiseNormals(stratified_normals, random, seed, labels)
            samples.append(self._draw(window.gather(0, rank), normals, channels))
        return Scenarios.equal(torch.stack(samples))

    def _draw_errors(self, random: np.random.Generator, count: int) -> Float64[Tensor, "M H K"]:
        """The errors of the factors on random held-out days."""
        days = random.integers(len(self.forecaster.errors), size=count)
        return torch.from_numpy(self.forecaster.errors[days])

    def _stratify(self, errors: Float32[Tensor, "M H K"]) -> Float32[Tensor, "M H K"]:
        """Errors of the same rank order that take each quantile of their distribution once."""
        variance = np.einsum("hkk->hk", self.forecaster.covariance)
        deviation = torch.from_numpy(np.sqrt(variance)).to(errors)
        return fill_ranks(errors, torch.zeros_like(deviation), deviation)

    def _draw(
        self, factors: Float32[Tensor, "M H K"], normals: "_NoiseNormals", channels: slice
    ) -> Float32[Tensor, "M H C"]:
        """States with noise of the size that it has at these factors, partly shared by channels."""
        part = self.factors.of_channels(channels)
        size = part.deviation(factors)
        shared = part.restless.to(size)
        at_mean = part.deviation(torch.zeros_like(factors[:1, :1]))
        single = (at_mean.square() - shared.square().sum(0)).clamp(min=0).sqrt()
        total = (single.square() + shared.square().sum(0)).sqrt().clamp(min=TINY)
        drawn = normals.draw(tuple(factors.shape[:2]), shared.shape, channels.start or 0)
        common, independent = (numbers.to(size) for numbers in drawn)
        # In place: a block of scenarios is hundreds of megabytes.
        noise = independent.mul_(single / total).add_(common @ (shared / total[0])).mul_(size)
        del size
        return noise.add_(part.states(factors))

    def deviation(
        self, future: Float32[Tensor, "B H K"], channels: slice = EVERY
    ) -> Float32[Tensor, "B H C"]:
        """The standard deviation of every channel: errors of the factors and noise together."""
        noise = self.factors.of_channels(channels).deviation(future).square()
        return (self.factor_variance[:, channels].to(future) + noise).sqrt()

    @cached_property
    def factor_variance(self) -> Float32[Tensor, "H C"]:
        """The variance of every channel at every step that is due to errors of the factors."""
        roots = _matrix_root(torch.from_numpy(self.forecaster.covariance)).float()
        return torch.einsum("hkl,kc->lhc", roots, self.factors.loading).square().sum(0)

    @cached_property
    def sign(self) -> Float32[Tensor, " C"]:
        """1 for a channel that rises with the most common error of the whole grid, else −1.

        That error is a forecast of too little consumption, so the last scenario is the highest.
        """
        loading = self.factors.loading.double()
        root = _matrix_root(torch.from_numpy(self.forecaster.covariance.mean(0)))
        _, modes = torch.linalg.eigh(root.T @ (loading @ loading.T) @ root)
        largest = modes[:, -1:].sum(1)  # zero factors give an empty vector
        rises = (root @ largest) @ loading
        power = (rises[P::KINDS] * self.factors.mean[P::KINDS]).sum()
        return torch.where(rises * torch.where(power < 0, -1.0, 1.0) < 0, -1.0, 1.0)

    def facts(self) -> dict[str, Any]:
        """Facts on each factor, and the share of each variable's error variance due to factors."""
        at_mean = torch.zeros((1, len(self.factors)))
        error, noise = self.factor_variance.mean(0), self.factors.deviation(at_mean)[0].square()
        shares = {}
        for kind, name in enumerate(VARIABLES):
            by_factors, rest = (float(part[kind::KINDS].mean()) for part in (error, noise))
            shares[name] = by_factors / (by_factors + rest) if by_factors + rest else None
        columns = {
            "share": self.factors.share,
            "persistence": self.factors.persistence,
            "error": np.sqrt(np.einsum("hkk->hk", self.forecaster.covariance).mean(0)),
            "strength": self.forecaster.strength,
        }
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return {"each": [dict(zip(columns, row, strict=True)) for row in rows], "shares": shares}

    def to_tensors(self) -> tuple[dict[str, Shaped[Tensor, "..."]], dict[str, Any]]:
        """The fitted state as tensors and facts, as a file contains them."""
        forecaster = {
            name: torch.from_numpy(getattr(self.forecaster, name)) for name in FORECASTER_ARRAYS
        }
        tensors = {**vars(self.factors), **forecaster}
        local = self.forecaster.local
        facts: dict[str, Any] = {"start_s": self.start_s, "seasons": self.forecaster.seasons}
        facts |= {} if local == GERMANY else {"country": local.country, "zone": local.zone}
        known = self.forecaster.known
        if known is not None:
            facts["known"] = list(known.names)
            tensors["known_mean"], tensors["known_size"] = map(
                torch.from_numpy, (known.mean, known.size)
            )
        return {name: tensor.contiguous() for name, tensor in tensors.items()}, facts

    @classmethod
    def from_tensors(
        cls,
        config: FactorForgeConfig,
        tensors: Mapping[str, Shaped[Tensor, "..."]],
        facts: Mapping[str, Any],
    ) -> "FittedFactorForge":
        """The fitted state that `to_tensors` returned."""
        factors = Factors(**{field.name: tensors[field.name] for field in fields(Factors)})
        arrays = {name: tensors[name].numpy() for name in FORECASTER_ARRAYS}
        zone = facts.get("zone")
        local = GERMANY if zone is None else Calendar(facts["country"], zone)
        known = None
        if "known" in facts:
            scale = (tensors[name].numpy() for name in ("known_mean", "known_size"))
            known = KnownColumns(tuple(facts["known"]), *scale)
        forecaster = FactorForecaster(
            config, **arrays, seasons=facts["seasons"], local=local, known=known
        )
        return cls(factors, forecaster, facts["start_s"])

    def check_inputs(self, n_past: int) -> None:
        """Raise, in whatever way, if the regressions cannot forecast from so many steps."""
        step, n_factors = np.timedelta64(self.forecaster.step_s, "s"), len(self.factors)
        n_steps = n_past + len(self.forecaster.weights)
        time = np.datetime64("2016-01-01T00:00:00", "s") + step * np.arange(n_steps)
        nothing = None if self.forecaster.known is None else self.forecaster.known.nothing(n_steps)
        self.forecaster(np.zeros((1, n_past, n_factors)), time[None], nothing)
        self.factors.deviation(torch.zeros((1, n_factors)))

    def _check_start(self, start: Shaped[np.ndarray, " B"]) -> None:
        for moment in start:
            if time_of_day(moment) != self.start_s:
                raise ForecastError(
                    f"factorforge was fitted for windows that start {self.start_s / 3600:g} h "
                    f"after midnight UTC, but one starts at {moment}; fit it for such windows"
                )


@dataclass(frozen=True)
class _NoiseNormals:
    """The random numbers of a window's noise.

    The first block of channels continues the window's stream; each later one has its own, so that
    it can be drawn without those before it.
    """

    kind: Normals
    random: np.random.Generator
    seed: int
    labels: tuple[str, ...]

    def draw(
        self, size: tuple[int, ...], columns: tuple[int, ...], first: int
    ) -> tuple[Float32[Tensor, "M H R"], Float32[Tensor, "M H C"]]:
        """Normal numbers that all channels share, and those of the block from a channel on."""
        n_shared, n_channels = columns
        shared = self.kind(self.random, (*size, n_shared))
        random = stream(self.seed, *self.labels, "channels", first) if first else self.random
        return shared, self.kind(random, (*size, n_channels))


def channel_blocks(n_scenarios: int, horizon: int, n_channels: int) -> list[slice]:
    """Blocks of whole buses of which so many scenarios can be drawn at a time."""
    bus_bytes = 4 * KINDS * n_scenarios * horizon
    width = KINDS * max(1, BLOCK_BYTES // bus_bytes)
    return [slice(k, min(k + width, n_channels)) for k in range(0, n_channels, width)]


def _buses(channels: slice) -> slice:
    """The buses of a block of channels."""
    return slice(channels.start // KINDS, channels.stop // KINDS)


def _matrix_root(matrix: Float64[Tensor, "*B K K"]) -> Float64[Tensor, "*B K K"]:
    """R with R Rᵀ = the matrix, which may be singular."""
    value, vector = torch.linalg.eigh(matrix)
    return vector * value.clamp(min=0).sqrt()[..., None, :]
