"""Coupling: any model's marginal forecast as joint scenarios, by the rank order of a template.

A fan says what each channel may do at each step, and not what the grid does as a whole. Its
quantiles are put into the rank order of scenarios that are futures of the whole grid. Every channel
and step keeps its own distribution; which values come together is the template's. With draws of a
model as the template this is ensemble copula coupling, with past days the Schaake shuffle.

References: doi:10.1214/13-STS443 (ECC-Q); doi:10.1175/1525-7541(2004)005<0243:TSSAMF>2.0.CO;2
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Integer
from torch import Tensor

from powerphase.cost import Stopwatch
from powerphase.errors import ForecastError, UnknownName
from powerphase.evaluation.forecasting import (
    Forecast,
    Piece,
    Progress,
    as_blocks,
    check_block,
    check_forecaster,
    load_forecast,
    predict_blocks,
    write_forecast,
)
from powerphase.evaluation.past_days import PastDays
from powerphase.evaluation.physical import is_physical
from powerphase.evaluation.ranks import in_rank_order, index_type, quantiles, rank_order
from powerphase.evaluation.scoring import check_task
from powerphase.metrics.streaming import channels_at_once
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.models.factorforge.model import FactorForge
from powerphase.models.framework.base import Description, Forecaster, Wrapper, describe
from powerphase.models.framework.saved import SavedForecaster
from powerphase.records.result import COUPLED_FIELD
from powerphase.scenarios import Context, Scenarios, Training
from powerphase.task.windows import Task

RANKED, SCHAAKE = "ranked", "schaake"

COUPLINGS = (RANKED, SCHAAKE)
"""The kinds of coupling, which are also the words that they add to a variant."""

MIN_SCENARIOS = 2

BLOCK_BYTES = 8 * 2**20
"""Size of the scenarios that are coupled at a time; what is computed of them needs much more."""

Blocks = Iterator[tuple[slice, Scenarios]]


def couple(
    model: Forecaster,
    how: str = RANKED,
    *,
    scenarios: int | None = None,
    template: Forecaster | None = None,
    seed: int = 42,
) -> Forecaster:
    """The model with joint scenarios: its own quantiles in the rank order of a template.

    The quantiles at the levels (m − ½)/M of every channel and step become M scenarios of equal
    weight. With `ranked` their ranks are those of the model's own scenarios if these are joint,
    else of the joint scenarios that the model can make (`joint_form`), else of those of a
    FactorForge that is fitted to the same record. With `schaake` they are those of past days of the
    training record.

    A model that couples its scenarios itself has the method `ranked_form(count)`, as FactorForge
    does. With `ranked` and without a template, that form is returned.

    Args:
        model: any object with `fit` and `predict` whose scenarios are not coupled yet.
        how: `ranked` or `schaake`.
        scenarios: the number of scenarios, M; None for as many as the model returns.
        template: for `ranked`, another forecaster with joint scenarios. A FactorForge that is
            fitted to the same record is not fitted again.
        seed: of the FactorForge that is fitted, if the model has no seed.
    """
    check_forecaster(model)
    source, can_draw = describe(model), hasattr(model, "joint_form")
    ranked_form: Any = getattr(model, "ranked_form", None)
    if ranked_form and how == RANKED and template is None and source.joint is not True:
        check_count(scenarios)
        form: Forecaster = ranked_form(scenarios)
        return form
    coupling = Coupling(
        how, source, count=scenarios, can_draw=can_draw, template=template, seed=seed
    )
    return Coupled(model, coupling)


def couple_forecast(
    forecast: Forecast | str | Path,
    task: Task,
    how: str = RANKED,
    *,
    scenarios: int | None = None,
    template: Forecaster | None = None,
    seed: int = 42,
    out: str | Path | None = None,
    on_progress: Progress | None = None,
) -> Forecast:
    """The forecast with joint scenarios, as `couple` makes them of a model.

    Args:
        forecast: of any model, live or in a directory, for the same task on the same data set.
        task: its training record has the past days, or is what FactorForge is fitted to.
        how: `ranked` or `schaake`.
        scenarios: the number of scenarios; None for as many as the forecast has.
        template: for `ranked`, a forecaster with joint scenarios.
        seed: of the FactorForge that is fitted, if the forecast has the seed 0.
        out: a directory for the scenarios, as for `powerphase.forecast`.
        on_progress: called with the number of windows written, and the number of all.
    """
    source = forecast if isinstance(forecast, Forecast) else load_forecast(forecast)
    check_task(source, task)
    coupling = Coupling(how, source.description, count=scenarios, template=template, seed=seed)
    coupling.fit(task.training)
    fit_s = coupling.watch.seconds
    cost = _add_seconds(source.cost, train_s=fit_s)
    live = Forecast(
        source.facts,
        coupling.description(source.description),
        cost,
        lambda skip: _couple_windows(source, task, coupling, cost, fit_s, skip),
        training=source.training,
        failed=source.failed,
    )
    return live if out is None else write_forecast(live, out, on_progress)


def is_coupled(variant: str | None) -> bool:
    """Whether a forecast of this variant is coupled."""
    return not set((variant or "").split("-")).isdisjoint(COUPLINGS)


def uncoupled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own part of a coupled model's config."""
    return {name: value for name, value in config.items() if name != COUPLED_FIELD}


def check_coupling(how: str) -> None:
    """Raise unless there is such a coupling."""
    if how not in COUPLINGS:
        raise UnknownName.among("coupling", how, COUPLINGS)


def check_count(count: int | None) -> None:
    """Raise unless so many scenarios can be coupled."""
    if count is None:
        return
    if not isinstance(count, int) or isinstance(count, bool) or count < MIN_SCENARIOS:
        raise ForecastError(
            f"{count!r} scenarios cannot be coupled; give a whole number of {MIN_SCENARIOS} or more"
        )


class Coupling:
    """How scenarios are coupled: their number, and the template of their ranks.

    Args:
        how: one of `COUPLINGS`.
        source: the model whose scenarios are coupled.
        count: the number of scenarios; None for as many as the model returns.
        can_draw: whether the model has the method `joint_form`.
        template: for `ranked`; None to choose it.
        seed: of a template that is made here, if the source has no seed.
    """

    def __init__(
        self,
        how: str,
        source: Description,
        *,
        count: int | None = None,
        can_draw: bool = False,
        template: Forecaster | None = None,
        seed: int = 42,
    ) -> None:
        check_coupling(how)
        _check_source(source)
        _check_template(how, template)
        check_count(count)
        self.how, self.count, self.watch = how, count, Stopwatch()
        self._name, self._is_joint = source.model, source.joint is True
        if how == SCHAAKE:
            template = PastDays()
        elif template is None and not (self._is_joint or can_draw):
            template = FactorForge(FactorForgeConfig(informed=False), seed=source.seed or seed)
        self.template = template
        """None for the model itself."""

    def description(self, source: Description) -> Description:
        """What rows say about the coupled model."""
        template = None if self.template is None else describe(self.template)
        facts = {"how": self.how, "scenarios": self.count, "template": _facts(template)}
        return replace(
            source.with_word(self.how),
            config={**source.config, COUPLED_FIELD: facts},
            seed=source.seed or (template.seed if template else 0),
            joint=True,
        )

    def fit(self, train: Training) -> None:
        """Fit the template, unless it is the model or was fitted to this record before."""
        with self.watch.running():
            if self.template is not None and not _is_fitted_to(self.template, train):
                self.template.fit(train)

    def couple(
        self, context: Context, blocks: Blocks, model: Forecaster | None = None, window: int = 0
    ) -> Blocks:
        """The model's blocks of channels for these windows, coupled, in smaller blocks.

        Args:
            context: of the windows.
            blocks: the model's scenarios.
            model: the model, if it is the template.
            window: the number of the first window, for errors.
        """
        count, order = self.count, None
        for channels, scenarios in _split(blocks):
            count = count or scenarios.values.shape[1]
            self._check_numbers(scenarios.values.shape[1], count)
            with self.watch.running():
                if order is None and not self._takes_own_ranks:
                    order = _order(self.template or model, context, count, window)
                ranks = None if order is None else order[..., channels]
                joint = _couple_block(scenarios, count, ranks)
            del scenarios
            yield channels, joint
            del joint

    @property
    def _takes_own_ranks(self) -> bool:
        return self.template is None and self._is_joint

    def _check_numbers(self, n_scenarios: int, count: int) -> None:
        """Raise if so many scenarios cannot become `count` joint ones."""
        if n_scenarios < MIN_SCENARIOS:
            raise ForecastError(
                f"{self._name} has one scenario; coupling needs {MIN_SCENARIOS} or more"
            )
        if self._takes_own_ranks:
            _check_template_size(n_scenarios, count)
        if self.count is None and n_scenarios != count:
            raise ForecastError(f"{n_scenarios} scenarios, but other channels have {count}")


class Coupled(Wrapper):
    """A model whose scenarios are coupled; `couple` makes it.

    Args:
        model: the model.
        coupling: how its scenarios are coupled.
    """

    joint_scenarios = True

    def __init__(self, model: Forecaster, coupling: Coupling) -> None:
        super().__init__(model)
        self.coupling = coupling

    @property
    def name(self) -> str:
        """The model's name."""
        return self._description.model

    @property
    def variant(self) -> str | None:
        """The model's variant and the kind of coupling, such as `tuned-ranked`."""
        return self._description.variant

    @property
    def config(self) -> dict[str, Any]:
        """The model's config, and how it is coupled."""
        return self._description.config

    @property
    def n_parameters(self) -> int | None:
        """Number of the model's parameters."""
        return self._description.parameters

    @property
    def seed(self) -> int:
        """The model's seed; that of the template if the model has none."""
        return self._description.seed

    @property
    def results_version(self) -> int:
        """The version of the model's results."""
        return self._description.version

    def fit(self, train: Training) -> None:
        """Fit the model and the template."""
        self.model.fit(train)
        _check_source(describe(self.model))  # some know their variant only now
        before_s = self.coupling.watch.seconds
        self.coupling.fit(train)
        self.own_fit_s = self.coupling.watch.seconds - before_s

    def predict(self, context: Context) -> Blocks:
        """The coupled scenarios, in blocks of channels."""
        return self.coupling.couple(context, self._plain_blocks(context), self.model)

    def _plain_blocks(self, context: Context) -> Blocks:
        for block in as_blocks(self.model.predict(context)):
            yield check_block(block, context), block[1]

    @property
    def _description(self) -> Description:
        return self.coupling.description(describe(self.model))


def _order(template: Any, context: Context, count: int, window: int) -> Integer[Tensor, "B M H C"]:
    """The rank order of so many of a template's scenarios for these windows."""
    form = _joint_form(template, count)
    shape = (len(context.past), count, context.horizon, context.layout.n_channels)
    order = torch.empty(shape, dtype=index_type(count), device=context.past.device)
    n_done = 0
    for channels, scenarios in _split(predict_blocks(form, context, Stopwatch(), window)):
        _check_template_size(scenarios.values.shape[1], count)
        order[..., channels] = rank_order(scenarios.values[:, :count])
        n_done += channels.stop - channels.start
        del scenarios
    if n_done != shape[-1]:
        raise ForecastError(f"the template forecast {n_done} of {shape[-1]} channels")
    return order


def _joint_form(template: Any, count: int) -> Forecaster:
    """A fitted template with joint scenarios; if it can choose, with so many."""
    if isinstance(template, PastDays):
        return template.with_count(count)
    return template if describe(template).joint is True else template.joint_form(count)


def _split(blocks: Blocks) -> Blocks:
    """The same scenarios in blocks of a size that can be computed with."""
    for channels, scenarios in blocks:
        width = channels_at_once(BLOCK_BYTES, scenarios)
        for first in range(channels.start, channels.stop, width):
            part = slice(first, min(first + width, channels.stop))
            inside = slice(part.start - channels.start, part.stop - channels.start)
            yield part, scenarios.of_channels(inside)
        del scenarios


def _couple_block(
    scenarios: Scenarios, count: int, order: Integer[Tensor, "B M H C"] | None
) -> Scenarios:
    """The quantiles in this order; None for that of the scenarios themselves."""
    if order is None:
        order = rank_order(scenarios.values[:, :count])
    ascending = quantiles(scenarios, count)
    return Scenarios.equal(in_rank_order(ascending, order.to(ascending.device)))


def _couple_windows(
    source: Forecast,
    task: Task,
    coupling: Coupling,
    cost: dict[str, Any],
    fit_s: float,
    skip: Collection[int],
) -> Iterator[Piece]:
    """Couple one window of a forecast after another, and update the cost."""
    before_s = coupling.watch.seconds
    for window, pieces in groupby(source.pieces(skip), key=itemgetter(0)):
        blocks = ((channels, scenarios) for _, channels, scenarios in pieces)
        try:
            context = task.test.context(window)
            for channels, scenarios in coupling.couple(context, blocks, window=window):
                predict_s = coupling.watch.seconds - before_s
                cost.update(_add_seconds(source.cost, train_s=fit_s, predict_s=predict_s))
                yield window, channels, scenarios
                del scenarios
        except ForecastError as error:
            raise error if error.window is not None else error.with_offset(window) from error


def _add_seconds(cost: dict[str, Any], **seconds: float) -> dict[str, Any]:
    """A copy of the cost with more seconds, where these are known."""
    known = {name: more for name, more in seconds.items() if cost[name] is not None}
    return {**cost, **{name: cost[name] + more for name, more in known.items()}}


def _check_source(source: Description) -> None:
    """Raise if scenarios of this description cannot be coupled."""
    if is_coupled(source.variant):
        raise ForecastError(
            f"{source.model} is coupled already ({source.variant}); use it as it is"
        )
    if is_physical(source.variant):
        raise ForecastError(
            f"{source.model} is physical, and other ranks would undo that; couple the plain "
            "forecast and solve it afterwards"
        )


def _check_template(how: str, template: Forecaster | None) -> None:
    """Raise if the template is not for this coupling, or has no joint scenarios."""
    if template is None:
        return
    if how != RANKED:
        raise ForecastError(f"{how} takes the ranks of past days; leave the template out")
    check_forecaster(template)
    made = describe(template)
    if made.joint is not True and not hasattr(template, "joint_form"):
        raise ForecastError(
            f"the template {made.model} has no joint scenarios; give a model with "
            "joint_scenarios = True or the method joint_form"
        )


def _check_template_size(n_scenarios: int, count: int) -> None:
    """Raise if a template has too few scenarios."""
    if n_scenarios < count:
        raise ForecastError(
            f"{n_scenarios} joint scenarios cannot order {count}; ask for {n_scenarios} or fewer, "
            "or give a template with more"
        )


def _facts(template: Description | None) -> dict[str, Any] | None:
    """What identifies a template's scenarios; None for the model itself."""
    if template is None:
        return None
    facts = {"config": template.config, "seed": template.seed, "version": template.version}
    return {"model": template.model, **facts}


def _is_fitted_to(template: Forecaster, train: Training) -> bool:
    """Whether it is a model that was fitted to this record and need not be fitted again."""
    if not isinstance(template, SavedForecaster):
        return False
    return template.is_fitted and template.data == train.data
