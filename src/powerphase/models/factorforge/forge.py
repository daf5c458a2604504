"""What a fitted FactorForge consists of, and the scenarios that it makes."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Shaped
from torch import Tensor

from powerphase.axes import KINDS, VARIABLES, P
from powerphase.errors import ForecastError
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.models.factorforge.factors import Factors
from powerphase.models.factorforge.outlook import Outlook
from powerphase.scenarios import Context, Scenarios
from powerphase.seeds import stream

LEARNED = ("calendar", "weights", "errors", "strength")
"""The arrays of an outlook."""

TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, eq=False)
class Forge:
    """Factors, their outlook, and when windows begin."""

    factors: Factors
    outlook: Outlook
    start_s: int
    """The time of day at which windows begin, in seconds, UTC."""

    def fan(self, future: Float32[Tensor, "B H K"], count: int) -> Scenarios:
        """So many equally likely scenarios: one quantile of every channel and step each.

        In a scenario the whole grid errs together, in the direction that is commonest: a channel
        that rises when the forecast is too low there takes its upper quantiles where one that falls
        takes its lower ones.
        """
        levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        quantiles = torch.special.ndtri(levels).to(future)[:, None, None]
        along = self.sign.to(future) * self.deviation(future)
        return Scenarios.equal(self.factors.states(future)[:, None] + quantiles * along[:, None])

    def draws(
        self,
        future: Float32[Tensor, "B H K"],
        start: Shaped[np.ndarray, " B"],
        count: int,
        seed: int,
    ) -> Scenarios:
        """So many samples: errors as they were on days left out, and fresh noise.

        Noise that channels share is drawn for all of them at once, so that what a sample says of
        one bus fits what it says of the next.
        """
        made = []
        for window, moment in zip(future, start, strict=True):
            random = stream(seed, "draws", str(moment))
            days = random.integers(len(self.outlook.errors), size=count)
            erring = window + torch.from_numpy(self.outlook.errors[days]).to(window)
            made.append(self._noise(erring, random).add_(self.factors.states(erring)))
        return Scenarios.equal(torch.stack(made))

    def future(self, context: Context) -> Float32[Tensor, "B H K"]:
        """The factors that are expected."""
        self._check_start(context.future_time[:, 0])
        past = self.factors.of(context.past).double().cpu().numpy()
        return torch.from_numpy(self.outlook(past, context.time)).to(context.past)

    def _noise(
        self, factors: Float32[Tensor, "M H K"], random: np.random.Generator
    ) -> Float32[Tensor, "M H C"]:
        """Noise as large as it is at these factors: what channels share, and what each has."""
        size = self.factors.deviation(factors)
        shared = self.factors.restless.to(size)
        at_rest = self.factors.deviation(torch.zeros_like(factors[:1, :1]))
        own = (at_rest.square() - shared.square().sum(0)).clamp(min=0).sqrt()
        whole = (own.square() + shared.square().sum(0)).sqrt().clamp(min=TINY)
        drawn = [
            torch.from_numpy(random.standard_normal((*factors.shape[:2], n), dtype=np.float32))
            for n in (len(shared), size.shape[-1])
        ]
        common, private = (part.to(size) for part in drawn)
        # In place: at 36,964 channels, 100 draws of a window are 1.4 GB.
        return private.mul_(own / whole).add_(common @ (shared / whole[0])).mul_(size)

    def deviation(self, future: Float32[Tensor, "B H K"]) -> Float32[Tensor, "B H C"]:
        """Every channel's standard deviation: the factors' errors and its own noise together."""
        noise = self.factors.deviation(future).square()
        return (self.factor_variance.to(future) + noise).sqrt()

    @cached_property
    def factor_variance(self) -> Float32[Tensor, "H C"]:
        """What the factors' errors do to every channel at every step."""
        roots = _root(torch.from_numpy(self.outlook.covariance)).float()
        return torch.einsum("hkl,kc->lhc", roots, self.factors.loading).square().sum(0)

    @cached_property
    def sign(self) -> Float32[Tensor, " C"]:
        """1 for a channel that rises with the commonest error of the whole grid, else −1.

        That error is too low a forecast of power, so the last scenario is the highest.
        """
        loading = self.factors.loading.double()
        root = _root(torch.from_numpy(self.outlook.covariance.mean(0)))
        _, modes = torch.linalg.eigh(root.T @ (loading @ loading.T) @ root)
        largest = modes[:, -1:].sum(1)  # none where nothing moves
        rises = (root @ largest) @ loading
        power = (rises[P::KINDS] * self.factors.mean[P::KINDS]).sum()
        return torch.where(rises * torch.where(power < 0, -1.0, 1.0) < 0, -1.0, 1.0)

    def facts(self) -> dict[str, Any]:
        """What the factors are, and which share of each variable's error variance is theirs."""
        at_rest = torch.zeros((1, len(self.factors)))
        error, noise = self.factor_variance.mean(0), self.factors.deviation(at_rest)[0].square()
        shares = {}
        for kind, name in enumerate(VARIABLES):
            ours, rest = (float(part[kind::KINDS].mean()) for part in (error, noise))
            shares[name] = ours / (ours + rest) if ours + rest else None
        wrong = np.sqrt(np.einsum("hkk->hk", self.outlook.covariance).mean(0))
        columns = {
            "share": self.factors.share,
            "persistence": self.factors.persistence,
            "error": wrong,
            "strength": self.outlook.strength,
        }
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return {"each": [dict(zip(columns, row, strict=True)) for row in rows], "shares": shares}

    def packed(self) -> tuple[dict[str, Shaped[Tensor, "..."]], dict[str, Any]]:
        """All of it as tensors and facts, as a file has them."""
        learned = {name: torch.from_numpy(getattr(self.outlook, name)) for name in LEARNED}
        tensors = {**vars(self.factors), **learned}
        facts = {"start_s": self.start_s, "seasons": self.outlook.seasons}
        return {name: tensor.contiguous() for name, tensor in tensors.items()}, facts

    @classmethod
    def unpacked(
        cls,
        config: FactorForgeConfig,
        tensors: Mapping[str, Shaped[Tensor, "..."]],
        facts: Mapping[str, Any],
    ) -> "Forge":
        """What was packed."""
        factors = Factors(**{one.name: tensors[one.name] for one in fields(Factors)})
        learned = {name: tensors[name].numpy() for name in LEARNED}
        return cls(factors, Outlook(config, **learned, seasons=facts["seasons"]), facts["start_s"])

    def _check_start(self, start: Shaped[np.ndarray, " B"]) -> None:
        for moment in start:
            if time_of_day(moment) != self.start_s:
                raise ForecastError(
                    f"factorforge was fitted for windows that begin {self.start_s / 3600:g} h "
                    f"after midnight UTC, and one begins at {moment}; fit it for such windows"
                )


def time_of_day(moment: np.datetime64) -> int:
    """Seconds since midnight UTC."""
    return int((moment - moment.astype("datetime64[D]")) / np.timedelta64(1, "s"))


def _root(matrix: Float64[Tensor, "*B K K"]) -> Float64[Tensor, "*B K K"]:
    """R with R Rᵀ = the matrix, also where it is singular."""
    value, vector = torch.linalg.eigh(matrix)
    return vector * value.clamp(min=0).sqrt()[..., None, :]
