"""PowerForge once more, as the paper's equations read: nothing folded, nothing split, no blocks.

It is the oracle of the network's tests and what its speed is measured against. It has no parameters
of its own: it is built on a network and uses the network's, so that both have gradients of the same
tensors. Trajectories are B x M x H x C throughout, and automatic differentiation does the rest.
"""

from functools import cache
from math import ceil, pi

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.axes import KINDS, THETA, P, Q, V
from powerphase.models.powerforge.network import PowerForgeNetwork
from powerphase.scenarios import Context, Scenarios

Past, Future = Float[Tensor, "B T C"], Float[Tensor, "B H C"]
State = Float[Tensor, "B C K"]
Noise = Float[Tensor, "2 M H"]
Kinds = list[Float[Tensor, "B M N H"]]
Fan = Float[Tensor, "B M H C"]
Parts = dict[str, Tensor]

DAY_S, WEEK_S = 86_400, 604_800


class Straightforward(nn.Module):
    """The forward pass and the loss of the network that it is given."""

    def __init__(self, network: PowerForgeNetwork) -> None:
        super().__init__()
        self.network, self.config, self.horizon = network, network.config, network.horizon
        self.ordered = network.config.objective == "ordered-quantile"

    def forward(
        self, context: Context, target: Future, noise: Noise | None = None
    ) -> tuple[Float[Tensor, ""], Parts]:
        """The loss of a batch, and its parts; without noise, some is drawn."""
        state, reference = self.encoded(context)
        deviations = self.decoded(state, self.drawn_noise() if noise is None else noise)
        fan = self.recovered(deviations, reference)
        if self.ordered:
            parts = self.ordered_loss(fan, target)
        else:
            parts = self.best_loss(fan, target, self.scores(state.detach()))
        if self.config.physics:
            parts |= self.physics_loss(deviations[V], fan)
        weight = self.network.objective.type_weight
        parts["types"] = self.config.type_weight_penalty * (weight - 1).square().sum()
        parts["gates"] = self.config.gate_weight * self.network.encoder.gates.square().sum()
        return torch.stack(list(parts.values())).sum(), parts

    @torch.no_grad()
    def scenarios(self, context: Context) -> Scenarios:
        """The forecast, without noise."""
        state, reference = self.encoded(context)
        fan = self.recovered(self.decoded(state, None), reference)
        if self.ordered:
            level = self.levels()
            border = F.pad((level[1:] + level[:-1]) / 2, (1, 0))
            weights = F.pad(border, (0, 1), value=1.0).diff().expand(len(fan), -1)
        else:
            weights = torch.softmax(self.scores(state), dim=1)
        return Scenarios(fan, weights[:, :, None].expand(-1, -1, fan.shape[3]))

    # The anchor.

    @torch.no_grad()
    def anchored(self, past: Past) -> tuple[Past, Future]:
        """The past less its reference, and the reference of the future."""
        angles = of_kind(past, THETA)
        past = with_kind(past, THETA, angles[:, -1:] + wrapped(angles - angles[:, -1:]))
        day = self.reference_day(past)
        before, after = past.shape[1], self.horizon
        tiled = day.repeat(1, ceil(max(before, after) / day.shape[1]), 1)
        # Days end where the past ends, and begin where the future begins.
        of_past, of_future = tiled[:, tiled.shape[1] - before :], tiled[:, :after]
        if self.config.anchor:
            bias = difference(past, of_past)[:, -self.config.bias_steps :].mean(1, keepdim=True)
            of_past, of_future = of_past + bias, of_future + bias
        return difference(past, of_past), of_future

    def reference_day(self, past: Past) -> Float[Tensor, "B L C"]:
        """The last days, averaged by how their ends correlate with the end of the past."""
        config = self.config
        n_days, length, n_query = config.segments, config.segment_steps, config.query_steps
        if not config.anchor:
            day = torch.zeros_like(past[:, :length])
            return with_kind(day, V, torch.ones_like(of_kind(day, V)))
        days = past[:, -n_days * length :].unflatten(1, (n_days, length))
        key, query = days[:, :, -n_query:], past[:, None, -n_query:]
        key, query = key - key.mean(2, keepdim=True), query - query.mean(2, keepdim=True)
        variance = [x.square().mean(2) + config.stabiliser for x in (key, query)]
        correlation = (key * query).mean(2) / (variance[0] * variance[1]).sqrt()
        weight = torch.softmax(correlation / config.temperature, dim=1)
        return (weight[:, :, None] * days).sum(1)

    # Encoder and mixer.

    def encoded(self, context: Context) -> tuple[State, Future]:
        """What is known of each channel, and the reference of the future."""
        past, encoder = context.past, self.network.encoder
        residual, reference = self.anchored(past)
        series = self.gated(residual).mT  # B C T
        single = series.flatten(0, 1)[:, None]
        views = [series, *(smooth(single).view_as(series) for smooth in encoder.filters)]
        state = encoder.refine(F.gelu(encoder.project(torch.cat(views, dim=2))))
        state = state + encoder.scale(series.abs().mean(2, keepdim=True))
        state = encoder.dropout(encoder.norm(state))
        kinds = encoder.kind.repeat(self.network.n_buses, 1)
        names = [encoder.node.repeat_interleave(KINDS, 0), kinds]
        state = state + encoder.identity(torch.cat(names, dim=1))
        state = state + encoder.calendar(mean_waves(context).to(past))[:, None]
        return (state if self.network.mixer is None else self.mixed(state)), reference

    def gated(self, residual: Past) -> Past:
        """V and θ with some of their own bus's P and Q."""
        p, q, v, theta = (of_kind(residual, kind) for kind in range(KINDS))
        (p_to_v, q_to_v), (p_to_theta, q_to_theta) = self.network.encoder.gates
        v = v + p_to_v * p + q_to_v * q
        theta = theta + p_to_theta * p + q_to_theta * q
        return torch.stack([p, q, v, theta], dim=3).flatten(2)

    def mixed(self, state: State) -> State:
        """Read, write, read; the two reads are one attention."""
        mixer = self.network.mixer
        tokens = mixer.tokens.expand(len(state), -1, -1)
        state = state + attention(mixer.read, state, tokens)
        tokens = tokens + attention(mixer.write, tokens, state)
        return state + attention(mixer.read, state, tokens)

    # The decoder.

    def drawn_noise(self) -> Noise:
        """A shock of P and Q for each scenario and step."""
        like = self.network.decoder.scenario
        noise = like.new_empty(2, self.config.scenarios, self.horizon).normal_()
        if self.config.noise == "student-t":
            degrees = torch.tensor(self.config.student_degrees).to(like)
            noise = noise / (torch.distributions.Chi2(degrees).sample(noise.shape) / degrees).sqrt()
        return noise

    def decoded(self, state: State, noise: Noise | None) -> Kinds:
        """The deviations of all scenarios from the reference, by kind."""
        decoder = self.network.decoder
        fused = state[:, None] + decoder.scenario[:, None]  # B M C K
        fused = fused.unflatten(2, (-1, KINDS))  # B M N 4 K
        powers = []
        for kind in (P, Q):
            power = decoder.mean[kind](fused[:, :, :, kind])
            if noise is not None:
                spread = F.softplus(decoder.spread[kind](fused[:, :, :, kind]))
                power = power + spread * noise[kind][:, None]
            powers.append(power)
        seers = fused[:, :, :, V:]  # B M N 2 K
        if decoder.bridge is not None:
            bridge = decoder.bridge
            tokens = [bridge.token[kind](powers[kind]) for kind in (P, Q)]
            seers = seers + bridge.scale * attention(bridge, seers, torch.stack(tokens, dim=3))
        v = self.bound() * torch.tanh(decoder.gate[0](seers[:, :, :, 0]))
        theta = pi * torch.tanh(decoder.gate[1](seers[:, :, :, 1]))
        return [*powers, v, theta]

    def bound(self) -> Float[Tensor, ""]:
        """Δ_V."""
        return self.network.decoder.voltage_range.clamp(min=self.config.voltage_range_floor)

    def recovered(self, deviations: Kinds, reference: Future) -> Fan:
        """The scenarios: on their reference, wrapped, and in ascending order if they are to be."""
        kinds = [
            deviation.mT + of_kind(reference, kind)[:, None]
            for kind, deviation in enumerate(deviations)
        ]
        kinds[THETA] = wrapped(kinds[THETA])
        fan = torch.stack(kinds, dim=4).flatten(3)
        return torch.sort(fan, dim=1).values if self.ordered else fan

    def scores(self, state: State) -> Float[Tensor, "B M"]:
        """Of the scenarios, where the winner takes all."""
        return self.network.score(state.mean(1))

    # The objective.

    def ordered_loss(self, fan: Fan, target: Future) -> Parts:
        """Pinball, what keeps the fan in shape, and the prior of the levels."""
        config, level = self.config, self.levels()
        error = target[:, None] - fan
        pinball = error * (level[:, None, None] - (error < 0).to(error.dtype))
        parts = {"pinball": (self.channel_weight(fan) * pinball).mean()}
        if config.quantile_regularisation:
            deviation = target.std(1, correction=0, keepdim=True).clamp(min=config.deviation_floor)
            low, high = (nearest(fan, level, wanted) for wanted in config.width_levels)
            width = (high - low).abs() / (config.width_cap * deviation[:, None])
            parts["width"] = config.width_weight * F.relu(width - 1).mean()
            jitter = (fan - nearest(fan, level, 0.5)).diff(dim=2).abs() / deviation[:, None]
            parts["jitter"] = config.jitter_weight * jitter.sum(1).mean() / (config.scenarios - 1)
        alpha, beta = F.softplus(self.network.objective.law.raw)
        parts["levels"] = (
            config.law_mean_weight * (alpha / (alpha + beta) - 1 / 2).square()
            + config.law_concentration_weight * (torch.log(alpha + beta) - np.log(2)).square()
        )
        return parts

    def best_loss(self, fan: Fan, target: Future, scores: Float[Tensor, "B M"]) -> Parts:
        """How far the nearest scenario is from what happened, and whether its score was high."""
        error = (target[:, None] - fan).abs()
        best = (self.channel_weight(fan) * error).mean((2, 3)).min(1)
        return {"winner": best.values.mean(), "score": F.cross_entropy(scores, best.indices)}

    def physics_loss(self, voltage: Float[Tensor, "B M N H"], fan: Fan) -> Parts:
        """Voltages that stray, and angles that jump."""
        share = voltage / self.bound().detach()
        stray = F.smooth_l1_loss(share, torch.zeros_like(share))
        jump = wrapped(of_kind(fan, THETA).diff(dim=2)).abs().mean()
        return {
            "voltage": self.config.voltage_weight * stray,
            "angle": self.config.angle_weight * jump,
        }

    def channel_weight(self, fan: Fan) -> Float[Tensor, " C"]:
        """ω of each channel's kind."""
        weight = self.network.objective.type_weight.clamp(*self.config.type_weight_range)
        return weight.repeat(fan.shape[3] // KINDS)

    def levels(self) -> Float[Tensor, " M"]:
        """τ_m: the distribution function of Beta(α, β) at an even grid."""
        raw = self.network.objective.law.raw
        ends = self.config.lowest_level, self.config.highest_level
        kind = {"dtype": torch.float64, "device": raw.device}
        grid = torch.linspace(*ends, self.config.scenarios, **kind)
        return beta_cdf(grid, *F.softplus(raw).double()).to(raw.dtype)


def beta_cdf(
    x: Float[Tensor, " M"], alpha: Float[Tensor, ""], beta: Float[Tensor, ""]
) -> Float[Tensor, " M"]:
    """∫ t^(α−1) (1−t)^(β−1) dt from 0 to x over the Beta function, for x below 1.

    With t = x s⁸ the integrand is smooth at 0 for every α that occurs.
    """
    s, weight = gauss_legendre(200, x.device)
    tail = (1 - x[:, None] * s**8) ** (beta - 1)
    integral = 8 * x**alpha * (s ** (8 * alpha - 1) * tail * weight).sum(1)
    return integral * (alpha + beta).lgamma().sub(alpha.lgamma() + beta.lgamma()).exp()


@cache
def gauss_legendre(n: int, device: torch.device) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Nodes and weights between 0 and 1."""
    node, weight = np.polynomial.legendre.leggauss(n)
    return torch.from_numpy((node + 1) / 2).to(device), torch.from_numpy(weight / 2).to(device)


def attention(
    weights: nn.Module, seekers: Float[Tensor, "*B I K"], sources: Float[Tensor, "*B J K"]
) -> Float[Tensor, "*B I K"]:
    """Scaled dot-product attention with a module's W_q, W_k and W_v."""
    query, key, value = weights.query(seekers), weights.key(sources), weights.value(sources)
    return torch.softmax(query @ key.mT / key.shape[-1] ** 0.5, dim=-1) @ value


def wrapped(angle: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    return torch.atan2(torch.sin(angle), torch.cos(angle))


def difference(values: Past, reference: Past) -> Past:
    """By how much the values exceed the reference; angles, the shorter way around."""
    plain = values - reference
    return with_kind(plain, THETA, wrapped(of_kind(plain, THETA)))


def of_kind(values: Float[Tensor, "*any C"], kind: int) -> Float[Tensor, "*any N"]:
    return values[..., kind::KINDS]


def with_kind(
    values: Float[Tensor, "*any C"], kind: int, new: Float[Tensor, "*any N"]
) -> Float[Tensor, "*any C"]:
    """The same values, but new ones of one kind."""
    kinds = list(values.unflatten(-1, (-1, KINDS)).unbind(-1))
    kinds[kind] = new
    return torch.stack(kinds, dim=-1).flatten(-2)


def nearest(fan: Fan, level: Float[Tensor, " M"], wanted: float) -> Float[Tensor, "B 1 H C"]:
    """The quantile whose level is nearest to the wanted one."""
    return fan.index_select(1, (level - wanted).abs().argmin()[None])


def mean_waves(context: Context) -> Float[Tensor, "B 4"]:
    """Mean sine and cosine of the time of day and of week, of the past."""
    time = context.time[:, : context.past.shape[1]].astype("datetime64[s]").astype(np.int64)
    turns = [2 * pi * (time % period) / period for period in (DAY_S, WEEK_S)]
    waves = [wave(turn).mean(1) for turn in turns for wave in (np.sin, np.cos)]
    return torch.from_numpy(np.stack(waves, axis=1))
