"""PowerForge as the paper's equations read, with no linear maps merged and no blocks.

It is the oracle of the network's tests and the baseline of its speed measurements. It has no
parameters: it is built on a network and uses the network's, so that both have gradients of the same
tensors. Trajectories are B x M x H x C throughout, and autograd computes all gradients.
"""

from functools import cache
from math import ceil, pi
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.axes import KINDS, THETA, P, Q, V
from powerphase.models.powerforge import PowerForgeNetwork
from powerphase.scenarios import Context, Scenarios

Past = Float[Tensor, "B T C"]
Future = Float[Tensor, "B H C"]
State = Float[Tensor, "B C K"]
Noise = Float[Tensor, "2 M H"]
Kinds = list[Float[Tensor, "B M N H"]]
Fan = Float[Tensor, "B M H C"]
Parts = dict[str, Tensor]

DAY_S, WEEK_S = 86_400, 604_800


class Straightforward(nn.Module):
    """The forward pass and the loss of a given network."""

    def __init__(self, network: PowerForgeNetwork) -> None:
        super().__init__()
        self.network, self.config, self.horizon = network, network.config, network.horizon
        self.is_ordered = network.config.objective == "ordered-quantile"

    def forward(
        self, context: Context, target: Future, noise: Noise | None = None
    ) -> tuple[Float[Tensor, ""], Parts]:
        """The loss of a batch, and its parts; noise is drawn unless it is given."""
        state, reference = self.encode(context)
        residuals = self.decode(state, self.draw_noise() if noise is None else noise)
        fan = self.recover(residuals, reference)
        if self.is_ordered:
            parts = self.ordered_loss(fan, target)
        else:
            parts = self.winner_loss(fan, target, self.scores(state.detach()))
        if self.config.physics:
            parts |= self.physics_loss(residuals[V], fan)
        weight = self.network.objective.type_weight
        parts["types"] = self.config.type_weight_penalty * (weight - 1).square().sum()
        parts["gates"] = self.config.gate_weight * self.network.encoder.gates.square().sum()
        return torch.stack(list(parts.values())).sum(), parts

    @torch.no_grad()
    def scenarios(self, context: Context) -> Scenarios:
        """The forecast, without noise."""
        state, reference = self.encode(context)
        fan = self.recover(self.decode(state, None), reference)
        if self.is_ordered:
            level = self.levels()
            border = F.pad((level[1:] + level[:-1]) / 2, (1, 0))
            weights = F.pad(border, (0, 1), value=1.0).diff().expand(len(fan), -1)
        else:
            weights = torch.softmax(self.scores(state), dim=1)
        return Scenarios(fan, weights[:, :, None].expand(-1, -1, fan.shape[3]))

    # The anchor.

    @torch.no_grad()
    def subtract_anchor(self, past: Past) -> tuple[Past, Future]:
        """The past less its reference, and the reference of the future."""
        angles = of_kind(past, THETA)
        past = with_kind(past, THETA, angles[:, -1:] + wrap(angles - angles[:, -1:]))
        day = self.reference_day(past)
        before, after = past.shape[1], self.horizon
        tiled = day.repeat(1, ceil(max(before, after) / day.shape[1]), 1)
        # Days end with the past and start with the future.
        past_reference, future_reference = tiled[:, tiled.shape[1] - before :], tiled[:, :after]
        if self.config.anchor:
            bias = difference(past, past_reference)[:, -self.config.bias_steps :].mean(
                1, keepdim=True
            )
            past_reference, future_reference = past_reference + bias, future_reference + bias
        return difference(past, past_reference), future_reference

    def reference_day(self, past: Past) -> Float[Tensor, "B L C"]:
        """The last days, weighted by the correlation of their ends with the end of the past."""
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

    def encode(self, context: Context) -> tuple[State, Future]:
        """The channel states, and the reference of the future."""
        past, encoder = context.past, self.network.encoder
        residual, reference = self.subtract_anchor(past)
        series = self.apply_gates(residual).mT  # B C T
        single = series.flatten(0, 1)[:, None]
        views = [series, *(conv(single).view_as(series) for conv in encoder.filters)]
        state = encoder.refine(F.gelu(encoder.project(torch.cat(views, dim=2))))
        state = state + encoder.scale(series.abs().mean(2, keepdim=True))
        state = encoder.dropout(encoder.norm(state))
        kinds = encoder.kind.repeat(self.network.n_buses, 1)
        embeddings = [encoder.node.repeat_interleave(KINDS, 0), kinds]
        state = state + encoder.identity(torch.cat(embeddings, dim=1))
        state = state + encoder.calendar(mean_waves(context).to(past))[:, None]
        return (state if self.network.mixer is None else self.mix(state)), reference

    def apply_gates(self, residual: Past) -> Past:
        """The residuals with the context gates applied to V and θ."""
        p, q, v, theta = (of_kind(residual, kind) for kind in range(KINDS))
        (p_to_v, q_to_v), (p_to_theta, q_to_theta) = self.network.encoder.gates
        v = v + p_to_v * p + q_to_v * q
        theta = theta + p_to_theta * p + q_to_theta * q
        return torch.stack([p, q, v, theta], dim=3).flatten(2)

    def mix(self, state: State) -> State:
        """Read, write, read; both reads share their weights."""
        mixer = self.network.mixer
        assert mixer is not None
        tokens = mixer.tokens.expand(len(state), -1, -1)
        state = state + attention(mixer.read, state, tokens)
        tokens = tokens + attention(mixer.write, tokens, state)
        return state + attention(mixer.read, state, tokens)

    # The decoder.

    def draw_noise(self) -> Noise:
        """The noise of P and Q for each scenario and step."""
        like = self.network.decoder.scenario
        noise = like.new_empty(2, self.config.scenarios, self.horizon).normal_()
        if self.config.noise == "student-t":
            degrees = torch.tensor(self.config.student_degrees).to(like)
            noise = noise / (torch.distributions.Chi2(degrees).sample(noise.shape) / degrees).sqrt()
        return noise

    def decode(self, state: State, noise: Noise | None) -> Kinds:
        """The residuals of all scenarios by kind."""
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
        responses = fused[:, :, :, V:]  # B M N 2 K
        if decoder.bridge is not None:
            bridge = decoder.bridge
            tokens = [bridge.token[kind](powers[kind]) for kind in (P, Q)]
            responses = responses + bridge.scale * attention(
                bridge, responses, torch.stack(tokens, dim=3)
            )
        v = self.bound() * torch.tanh(decoder.gate[0](responses[:, :, :, 0]))
        theta = pi * torch.tanh(decoder.gate[1](responses[:, :, :, 1]))
        return [*powers, v, theta]

    def bound(self) -> Float[Tensor, ""]:
        """Δ_V."""
        parameter, floor = self.network.decoder.voltage_range, self.config.voltage_range_floor
        if self.config.voltage_gate == "clamp":
            return parameter.clamp(min=floor)
        return floor + parameter.exp().log1p()

    def recover(self, residuals: Kinds, reference: Future) -> Fan:
        """The scenarios: reference added, angles wrapped, and sorted for ordered quantiles."""
        kinds = [
            residual.mT + of_kind(reference, kind)[:, None]
            for kind, residual in enumerate(residuals)
        ]
        kinds[THETA] = wrap(kinds[THETA])
        fan = torch.stack(kinds, dim=4).flatten(3)
        return torch.sort(fan, dim=1).values if self.is_ordered else fan

    def scores(self, state: State) -> Float[Tensor, "B M"]:
        """The scenarios' scores, for winner-takes-all."""
        return self.network.score(state.mean(1))

    # The objective.

    def ordered_loss(self, fan: Fan, target: Future) -> Parts:
        """The pinball loss, the quantile-fan regularisers, and the levels' prior."""
        config, level = self.config, self.levels()
        error = target[:, None] - fan
        pinball = error * (level[:, None, None] - (error < 0).to(error.dtype))
        parts = {"pinball": (self.channel_weight(fan) * pinball).mean()}
        if config.quantile_regularisation:
            deviation = target.std(1, correction=0, keepdim=True)
            residual = deviation.clamp(min=config.deviation_floor)
            counts = torch.ones_like(residual)
            if config.still_channels == "skip":
                counts = (deviation >= config.deviation_floor).to(residual)
            low, high = (nearest(fan, level, target_level) for target_level in config.width_levels)
            width = (high - low).abs() / (config.width_cap * residual[:, None])
            parts["width"] = config.width_weight * (counts[:, None] * F.relu(width - 1)).mean()
            jitter = (fan - nearest(fan, level, 0.5)).diff(dim=2).abs() / residual[:, None]
            jitter = counts[:, None] * jitter
            parts["jitter"] = config.jitter_weight * jitter.sum(1).mean() / (config.scenarios - 1)
        alpha, beta = F.softplus(self.network.objective.law.raw)
        parts["levels"] = (
            config.law_mean_weight * (alpha / (alpha + beta) - 1 / 2).square()
            + config.law_concentration_weight * (torch.log(alpha + beta) - np.log(2)).square()
        )
        return parts

    def winner_loss(self, fan: Fan, target: Future, scores: Float[Tensor, "B M"]) -> Parts:
        """The distance of the nearest scenario from the target, and the loss of its score."""
        error = (target[:, None] - fan).abs()
        best = (self.channel_weight(fan) * error).mean((2, 3)).min(1)
        return {"winner": best.values.mean(), "score": F.cross_entropy(scores, best.indices)}

    def physics_loss(self, voltage: Float[Tensor, "B M N H"], fan: Fan) -> Parts:
        """The physics regularisers of voltages and angles."""
        share = voltage / self.bound().detach()
        voltage_loss = F.smooth_l1_loss(share, torch.zeros_like(share))
        angle_loss = wrap(of_kind(fan, THETA).diff(dim=2)).abs().mean()
        return {
            "voltage": self.config.voltage_weight * voltage_loss,
            "angle": self.config.angle_weight * angle_loss,
        }

    def channel_weight(self, fan: Fan) -> Float[Tensor, " C"]:
        """ω of each channel's kind."""
        weight = self.network.objective.type_weight.clamp(*self.config.type_weight_range)
        return weight.repeat(fan.shape[3] // KINDS)

    def levels(self) -> Float[Tensor, " M"]:
        """τ_m: the distribution function of Beta(α, β) at an even grid."""
        raw = self.network.objective.law.raw
        ends = self.config.lowest_level, self.config.highest_level
        steps = self.config.scenarios
        grid = torch.linspace(*ends, steps, dtype=torch.float64, device=raw.device)
        return beta_cdf(grid, *F.softplus(raw).double()).to(raw.dtype)


def beta_cdf(
    x: Float[Tensor, " M"], alpha: Float[Tensor, ""], beta: Float[Tensor, ""]
) -> Float[Tensor, " M"]:
    """∫ t^(α−1) (1−t)^(β−1) dt from 0 to x over the Beta function, for x below 1.

    With t = x s⁸ the integrand is smooth at 0 for all α in use.
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
    weights: Any, queries: Float[Tensor, "*B I K"], sources: Float[Tensor, "*B J K"]
) -> Float[Tensor, "*B I K"]:
    """Scaled dot-product attention with a module's W_q, W_k and W_v."""
    query, key, value = weights.query(queries), weights.key(sources), weights.value(sources)
    return torch.softmax(query @ key.mT / key.shape[-1] ** 0.5, dim=-1) @ value


def wrap(angle: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    return torch.atan2(torch.sin(angle), torch.cos(angle))


def difference(values: Past, reference: Past) -> Past:
    """The values less the reference, with angles wrapped."""
    plain = values - reference
    return with_kind(plain, THETA, wrap(of_kind(plain, THETA)))


def of_kind(values: Float[Tensor, "*any C"], kind: int) -> Float[Tensor, "*any N"]:
    return values[..., kind::KINDS]


def with_kind(
    values: Float[Tensor, "*any C"], kind: int, new: Float[Tensor, "*any N"]
) -> Float[Tensor, "*any C"]:
    """The values with those of one kind replaced."""
    kinds = list(values.unflatten(-1, (-1, KINDS)).unbind(-1))
    kinds[kind] = new
    return torch.stack(kinds, dim=-1).flatten(-2)


def nearest(fan: Fan, level: Float[Tensor, " M"], target_level: float) -> Float[Tensor, "B 1 H C"]:
    """The quantile whose level is nearest to the target level."""
    return fan.index_select(1, (level - target_level).abs().argmin()[None])


def mean_waves(context: Context) -> Float[Tensor, "B 4"]:
    """Mean sine and cosine of the time of day and of week over the past."""
    time = context.time[:, : context.past.shape[1]].astype("datetime64[s]").astype(np.int64)
    turns = [2 * pi * (time % period) / period for period in (DAY_S, WEEK_S)]
    waves = [wave(turn).mean(1) for turn in turns for wave in (np.sin, np.cos)]
    return torch.from_numpy(np.stack(waves, axis=1))
