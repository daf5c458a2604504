"""The type-aware decoder: M residuals from the reference day for every channel.

Each kind has its own heads. A head reads h + e_m, channel state plus scenario embedding. It is
linear, so W(h + e_m) = Wh + We_m: each channel is projected once, not M times, and scenarios have
small tables. P and Q come first. Through the causal cross-type bridge, V and θ then attend to the P
and Q that the same scenario predicts for their bus. The bridge's tokens W_φ·traj, their keys and
values, and the head after them are linear in the trajectories too, so no tensor of hidden size per
scenario is needed.

The result, `HeadOutputs`, is small; kernels and loss compute the scenarios from it.
"""

from math import expm1, log, pi
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.axes import THETA, P, Q, V
from powerphase.models.powerforge.config import PowerForgeConfig

ALIGNED_ROWS = 4
"""Matrix products are fast if rows are multiples of 16 bytes."""


class HeadOutputs(NamedTuple):
    """The linear outputs of the decoder's heads, from which all scenarios are computed.

    For each bus, P and Q have a mean and a spread before softplus; V and θ have a gate before tanh,
    two directions along which the trajectories of P and Q change the bridge's logit, and the
    logit's constant. The tables hold what each scenario adds to these.
    """

    power: Float[Tensor, "B 2 HH W"]
    gate: Float[Tensor, "B 2 HHH1 W"]
    power_table: Float[Tensor, "2 2 H M"]
    gate_table: Float[Tensor, "2 H M"]
    direction_table: Float[Tensor, "2 H M"]
    constant_table: Float[Tensor, " M"]
    gate_maps: Float[Tensor, "2 H RR"]
    """From the bridge's inputs to the gates of V and θ."""
    bound: Float[Tensor, " 2"]
    """The largest residuals of V and θ, Δ_V and π."""
    noise: Float[Tensor, "2 H M"]
    """The noise of P and Q."""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, M, H and W."""
        (windows, _, _, width), (_, steps, scenarios) = self.power.shape, self.gate_table.shape
        return windows, scenarios, steps, width

    def trajectory(self, source: int) -> Float[Tensor, "B M H W"]:
        """The residuals of P (0) or Q (1)."""
        steps = self.gate_table.shape[1]
        mean, spread = self.power[:, source].unflatten(1, (2, steps)).unsqueeze(2).unbind(1)
        scenario_mean, scenario_spread = self.power_table[source].mT.unsqueeze(3).unbind(0)  # M H 1
        size = F.softplus(spread + scenario_spread)
        return mean + scenario_mean + size * self.noise[source].T.unsqueeze(2)

    def open_gate(
        self, bridge: Float[Tensor, "2 B M H W"], number: int
    ) -> Float[Tensor, "B M H W"]:
        """The tanh gates of V (0) or θ (1), between −1 and 1, with the bridge's output added."""
        steps = self.gate_table.shape[1]
        of_bus = self.gate[:, number, :steps].unsqueeze(1)
        return torch.tanh(bridge[number] + of_bus + self.gate_table[number].T.unsqueeze(2))


def _range_start(config: PowerForgeConfig) -> float:
    """The parameter of Δ_V before training."""
    if config.voltage_gate == "clamp":
        return config.voltage_range
    return log(expm1(config.voltage_range - config.voltage_range_floor))


def _heads(n_in: int, n_out: int) -> Any:
    """Two linear maps, a list to mypy and a module to torch."""
    return nn.ModuleList(nn.Linear(n_in, n_out) for _ in range(2))


class Decoder(nn.Module):
    """From channel states to head outputs; each bus by itself, so buses can come in blocks."""

    def __init__(self, config: PowerForgeConfig, horizon: int) -> None:
        super().__init__()
        self.config, self.horizon = config, horizon
        hidden = config.hidden
        self.scenario = nn.Parameter(config.scenario_start * torch.randn(config.scenarios, hidden))
        self.mean = _heads(hidden, horizon)
        self.spread = _heads(hidden, horizon)
        self.gate = _heads(hidden, horizon)
        self.voltage_range = nn.Parameter(torch.tensor(_range_start(config)))
        self.bridge = Bridge(config, horizon) if config.bridge else None
        for head in (*self.mean, *self.spread, *self.gate):
            head.weight.data *= config.head_start
            nn.init.zeros_(head.bias)
        for head in self.spread:
            nn.init.constant_(head.bias, log(expm1(config.noise_start)))

    @property
    def bounds(self) -> Float[Tensor, " 2"]:
        """The largest residual of a voltage, Δ_V [p.u.], and of an angle, π [rad]."""
        floor = self.config.voltage_range_floor
        if self.config.voltage_gate == "clamp":
            voltage = self.voltage_range.clamp(min=floor)
        else:
            voltage = floor + F.softplus(self.voltage_range)
        return torch.stack([voltage, torch.full_like(voltage, pi)])

    def draw_noise(self, generator: torch.Generator | None = None) -> Float[Tensor, "2 H M"]:
        """The noise of P and of Q for each step and scenario, shared by the whole grid."""
        size = (2, self.horizon, self.config.scenarios)
        device = self.scenario.device if generator is None else generator.device
        noise = torch.randn(size, device=device, generator=generator)
        if self.config.noise == "student-t":
            shape = torch.full(size, self.config.student_degrees / 2, device=device)
            gamma = torch._standard_gamma(shape, generator=generator)
            noise = noise / (gamma * 2 / self.config.student_degrees).sqrt()
        return noise.to(self.scenario)

    def linear_maps(self) -> "DecoderMaps":
        """The linear maps of channels and scenarios; they are the same for all blocks of buses.

        They are small, so they are never rounded to half precision.
        """
        with torch.autocast(self.scenario.device.type, enabled=False):
            return self._linear_maps()

    def _linear_maps(self) -> "DecoderMaps":
        scenario, horizon = self.scenario, self.horizon
        power = [torch.cat([mean.weight, spread.weight]) for mean, spread in self._powers()]
        bias = [torch.cat([mean.bias, spread.bias]) for mean, spread in self._powers()]
        power_maps = torch.stack(power)  # 2 2H K
        table = power_maps @ scenario.T + torch.stack(bias).unsqueeze(2)
        gate = torch.stack([head.weight for head in self.gate])  # 2 H K
        gate_table = gate @ scenario.T + torch.stack([h.bias for h in self.gate]).unsqueeze(2)
        rows = -(-(horizon + 1) // ALIGNED_ROWS) * ALIGNED_ROWS
        if self.bridge is None:
            bridge_rows = scenario.new_zeros(2 * horizon + 1, scenario.shape[1])
            gate_maps = scenario.new_zeros(2, horizon, 2 * rows)
        else:
            bridge_rows, gate_maps = self.bridge.directions(), self.bridge.maps(gate, rows)
        directions, constants = (bridge_rows @ scenario.T).split([2 * horizon, 1])
        return DecoderMaps(
            power=power_maps,
            gate=torch.cat([gate, bridge_rows.expand(2, -1, -1)], dim=1),
            power_table=table.unflatten(1, (2, horizon)),
            gate_table=gate_table,
            direction_table=directions.unflatten(0, (2, horizon)),
            constant_table=constants[0],
            gate_maps=gate_maps,
            bounds=self.bounds,
        )

    def _powers(self) -> Any:
        return list(zip(self.mean, self.spread, strict=True))


class DecoderMaps(NamedTuple):
    """The maps from channel states to head outputs, and the scenarios' tables."""

    power: Float[Tensor, "2 HH K"]
    gate: Float[Tensor, "2 HHH1 K"]
    power_table: Float[Tensor, "2 2 H M"]
    gate_table: Float[Tensor, "2 H M"]
    direction_table: Float[Tensor, "2 H M"]
    constant_table: Float[Tensor, " M"]
    gate_maps: Float[Tensor, "2 H RR"]
    bounds: Float[Tensor, " 2"]

    def head_outputs(
        self, state: Float[Tensor, "B 4 N K"], noise: Float[Tensor, "2 H M"], width: int
    ) -> HeadOutputs:
        """The head outputs of these buses, padded with zeros from N to W = `width`."""
        project: Any = _Projection.apply
        with torch.autocast(state.device.type, enabled=False):
            # Head outputs are never rounded to half precision.
            power, gate = project(state.to(self.gate_maps.dtype), self.power, self.gate, width)
        return HeadOutputs(power, gate, *self[2:], noise)


class _Projection(torch.autograd.Function):
    """The heads of each kind, applied to its channels, with buses along the last axis.

    PyTorch's broadcasting would copy and transpose the channels of each kind before the product.
    """

    @staticmethod
    def forward(
        ctx: Any, state: Tensor, power: Tensor, gate: Tensor, width: int
    ) -> tuple[Tensor, ...]:
        (windows, _, ctx.buses, _), outputs = state.shape, []
        state = F.pad(state, (0, 0, 0, width - ctx.buses))
        ctx.save_for_backward(state, power, gate)
        for heads, kinds in ((power, (P, Q)), (gate, (V, THETA))):
            output = state.new_empty(windows, 2, heads.shape[1], width)
            for number, kind in enumerate(kinds):
                weight = heads[number].expand(windows, -1, -1)
                torch.bmm(weight, state[:, kind].mT, out=output[:, number])
            outputs.append(output)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, grad_power: Tensor, grad_gate: Tensor) -> tuple[Tensor | None, ...]:
        state, power, gate = ctx.saved_tensors
        grad_state, grad_heads = torch.empty_like(state), []
        for heads, gradient, kinds in ((power, grad_power, (P, Q)), (gate, grad_gate, (V, THETA))):
            by_kind = []
            for number, kind in enumerate(kinds):
                weight = heads[number].expand(len(state), -1, -1)
                torch.bmm(gradient[:, number].mT, weight, out=grad_state[:, kind])
                by_kind.append(torch.bmm(gradient[:, number], state[:, kind]).sum(0))
            grad_heads.append(torch.stack(by_kind))
        return grad_state[:, :, : ctx.buses], *grad_heads, None


class Bridge(nn.Module):
    """The causal cross-type bridge from P and Q to V and θ of the same bus and scenario.

    V and θ attend to two tokens, of P and of Q. A softmax over two keys is a sigmoid of the
    difference of their logits.
    """

    def __init__(self, config: PowerForgeConfig, horizon: int) -> None:
        super().__init__()
        hidden = config.hidden
        self.token = _heads(horizon, hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, hidden, bias=False)
        self.scale = nn.Parameter(torch.tensor(config.bridge_scale))

    def directions(self) -> Float[Tensor, "HH1 K"]:
        """From h + e_m to the directions along which P and Q change the logit, and its constant.

        The logit of a token is traj·(W_φᵀ W_kᵀ W_q)(h + e_m), so the query becomes a direction in
        the space of trajectories.
        """
        key_query = self.key.weight.T @ self.query.weight / self.query.in_features**0.5
        of_p, of_q = self.token
        maps = torch.cat([of_p.weight, -of_q.weight, (of_p.bias - of_q.bias).unsqueeze(1)], dim=1)
        return maps.T @ key_query

    def maps(self, gate: Float[Tensor, "2 H K"], rows: int) -> Float[Tensor, "2 H RR"]:
        """From P and a row of ones, then Q and a row of ones, `rows` rows each, to the gates."""
        value = self.scale * (gate @ self.value.weight)
        parts = [torch.cat([token.weight, token.bias.unsqueeze(1)], dim=1) for token in self.token]
        return torch.cat([F.pad(value @ part, (0, rows - part.shape[1])) for part in parts], dim=2)
