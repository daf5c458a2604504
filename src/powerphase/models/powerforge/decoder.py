"""The decoder: M deviations from the reference day for every channel, by heads made for each kind.

A head reads h + e_m, channel plus scenario. It is linear, so W(h + e_m) = Wh + We_m: each channel
is projected once, not M times, and scenarios have tables of their own. P and Q come first. V and θ
then look at the P and Q that the same scenario gives their own bus, through the bridge, which is
folded likewise: its tokens W_φ·traj, their keys and values and the head behind them are linear in
the trajectories, so that nothing of hidden size exists per scenario.

All that is learned meets here. What comes out, `Views`, is small, and scenarios are made of it.
"""

from math import expm1, log, pi
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.axes import THETA, P, Q, V
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.kernels.bridge_inputs import Views

ALIGNED_ROWS = 4
"""Matrix products are fast where rows are whole multiples of 16 bytes."""


def _heads(n_in: int, n_out: int) -> Any:
    """Two linear maps, which mypy takes as a list and torch as a module."""
    return nn.ModuleList(nn.Linear(n_in, n_out) for _ in range(2))


class Decoder(nn.Module):
    """From channels to views. It treats every bus by itself, so buses can come in blocks."""

    def __init__(self, config: PowerForgeConfig, horizon: int) -> None:
        super().__init__()
        self.config, self.horizon = config, horizon
        hidden = config.hidden
        self.scenario = nn.Parameter(config.scenario_start * torch.randn(config.scenarios, hidden))
        self.mean = _heads(hidden, horizon)
        self.spread = _heads(hidden, horizon)
        self.gate = _heads(hidden, horizon)
        self.voltage_range = nn.Parameter(torch.tensor(config.voltage_range))
        self.bridge = Bridge(config, horizon) if config.bridge else None
        for head in (*self.mean, *self.spread, *self.gate):
            head.weight.data *= config.head_start
            nn.init.zeros_(head.bias)
        for head in self.spread:
            nn.init.constant_(head.bias, log(expm1(config.noise_start)))

    @property
    def bounds(self) -> Float[Tensor, " 2"]:
        """The largest deviation of a voltage, Δ_V [p.u.], and of an angle [rad]."""
        voltage = self.voltage_range.clamp(min=self.config.voltage_range_floor)
        return torch.stack([voltage, torch.full_like(voltage, pi)])

    def draw_noise(self, generator: torch.Generator | None = None) -> Float[Tensor, "2 H M"]:
        """One shock of P and one of Q for each step and scenario, shared by the whole grid."""
        size = (2, self.horizon, self.config.scenarios)
        device = self.scenario.device if generator is None else generator.device
        noise = torch.randn(size, device=device, generator=generator)
        if self.config.noise == "student-t":
            shape = torch.full(size, self.config.student_degrees / 2, device=device)
            gamma = torch._standard_gamma(shape, generator=generator)
            noise = noise / (gamma * 2 / self.config.student_degrees).sqrt()
        return noise.to(self.scenario)

    def folded(self) -> "Folded":
        """All maps of channels and scenarios as few products; the same for all blocks of buses.

        They are small, so they are never rounded to half precision.
        """
        with torch.autocast(self.scenario.device.type, enabled=False):
            return self._folded()

    def _folded(self) -> "Folded":
        scenario, horizon = self.scenario, self.horizon
        power = [torch.cat([mean.weight, spread.weight]) for mean, spread in self._powers()]
        bias = [torch.cat([mean.bias, spread.bias]) for mean, spread in self._powers()]
        of_power = torch.stack(power)  # 2 2H K
        table = of_power @ scenario.T + torch.stack(bias).unsqueeze(2)
        gate = torch.stack([head.weight for head in self.gate])  # 2 H K
        gate_table = gate @ scenario.T + torch.stack([h.bias for h in self.gate]).unsqueeze(2)
        rows = -(-(horizon + 1) // ALIGNED_ROWS) * ALIGNED_ROWS
        if self.bridge is None:
            seen = scenario.new_zeros(2 * horizon + 1, scenario.shape[1])
            maps = scenario.new_zeros(2, horizon, 2 * rows)
        else:
            seen, maps = self.bridge.directions(), self.bridge.maps(gate, rows)
        directions, constants = (seen @ scenario.T).split([2 * horizon, 1])
        return Folded(
            power=of_power,
            gate=torch.cat([gate, seen.expand(2, -1, -1)], dim=1),
            power_table=table.unflatten(1, (2, horizon)),
            gate_table=gate_table,
            direction_table=directions.unflatten(0, (2, horizon)),
            constant_table=constants[0],
            maps=maps,
            bounds=self.bounds,
        )

    def _powers(self) -> Any:
        return list(zip(self.mean, self.spread, strict=True))


class Folded(NamedTuple):
    """What a decoder does to channels, and what its scenarios add."""

    power: Float[Tensor, "2 HH K"]
    gate: Float[Tensor, "2 HHH1 K"]
    power_table: Float[Tensor, "2 2 H M"]
    gate_table: Float[Tensor, "2 H M"]
    direction_table: Float[Tensor, "2 H M"]
    constant_table: Float[Tensor, " M"]
    maps: Float[Tensor, "2 H RR"]
    bounds: Float[Tensor, " 2"]

    def views(
        self, state: Float[Tensor, "B 4 N K"], noise: Float[Tensor, "2 H M"], width: int
    ) -> Views:
        """What the heads see of these buses; W is `width`, with nothing beyond N."""
        project: Any = _Projected.apply
        with torch.autocast(state.device.type, enabled=False):
            # What comes out of a head is never rounded to half precision.
            power, gate = project(state.to(self.maps.dtype), self.power, self.gate, width)
        return Views(power, gate, *self[2:], noise)


class _Projected(torch.autograd.Function):
    """The heads of each kind on its own channels, with the buses side by side.

    PyTorch's broadcasting would copy and transpose the channels of each kind before the product.
    """

    @staticmethod
    def forward(
        ctx: Any, state: Tensor, power: Tensor, gate: Tensor, width: int
    ) -> tuple[Tensor, ...]:
        (windows, _, ctx.buses, _), found = state.shape, []
        state = F.pad(state, (0, 0, 0, width - ctx.buses))
        ctx.save_for_backward(state, power, gate)
        for heads, kinds in ((power, (P, Q)), (gate, (V, THETA))):
            made = state.new_empty(windows, 2, heads.shape[1], width)
            for place, kind in enumerate(kinds):
                by = heads[place].expand(windows, -1, -1)
                torch.bmm(by, state[:, kind].mT, out=made[:, place])
            found.append(made)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, of_power: Tensor, of_gate: Tensor) -> tuple[Tensor | None, ...]:
        state, power, gate = ctx.saved_tensors
        of_state, of_heads = torch.empty_like(state), []
        for heads, slope, kinds in ((power, of_power, (P, Q)), (gate, of_gate, (V, THETA))):
            found = []
            for place, kind in enumerate(kinds):
                by = heads[place].expand(len(state), -1, -1)
                torch.bmm(slope[:, place].mT, by, out=of_state[:, kind])
                found.append(torch.bmm(slope[:, place], state[:, kind]).sum(0))
            of_heads.append(torch.stack(found))
        return of_state[:, :, : ctx.buses], *of_heads, None


class Bridge(nn.Module):
    """What V and θ learn from the P and Q of the same bus and scenario, never the reverse.

    Each of them attends to two tokens, of P and of Q. A softmax over two keys is a sigmoid of the
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
        """Of h + e_m: along which P and Q change the logit of P over Q, and its constant.

        The logit of a token is traj·(W_φᵀ W_kᵀ W_q)(h + e_m): the query, as a direction among
        trajectories.
        """
        fold = self.key.weight.T @ self.query.weight / self.query.in_features**0.5
        of_p, of_q = self.token
        maps = torch.cat([of_p.weight, -of_q.weight, (of_p.bias - of_q.bias).unsqueeze(1)], dim=1)
        return maps.T @ fold

    def maps(self, gate: Float[Tensor, "2 H K"], rows: int) -> Float[Tensor, "2 H RR"]:
        """From P and a row of ones, and the same of Q, in `rows` rows each, to the gates."""
        value = self.scale * (gate @ self.value.weight)
        parts = [torch.cat([token.weight, token.bias.unsqueeze(1)], dim=1) for token in self.token]
        return torch.cat([F.pad(value @ part, (0, rows - part.shape[1])) for part in parts], dim=2)
