"""The decoder: M deviations from the reference day for every channel, by heads made for each kind.

A head reads h + e_m, channel plus scenario. It is linear, so W(h + e_m) = Wh + We_m: each channel
is projected once, not M times. P and Q come first. V and θ then look at the P and Q that the same
scenario gives their own bus, through the bridge, which is folded likewise: its tokens W_φ·traj,
their keys and values and the head behind them are linear in the trajectories, so that nothing of
hidden size exists per scenario.
"""

from collections.abc import Sequence
from math import expm1, log, pi
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.axes import THETA, P, Q, V
from powerphase.models.powerforge.config import PowerForgeConfig


class Deviations(NamedTuple):
    """What the scenarios deviate from the reference day, by kind."""

    p: Float[Tensor, "B N M H"]
    q: Float[Tensor, "B N M H"]
    v: Float[Tensor, "B N M H"]
    theta: Float[Tensor, "B N M H"]


def _heads(n_in: int, n_out: int) -> Any:
    """Two linear maps, which mypy takes as a list and torch as a module."""
    return nn.ModuleList(nn.Linear(n_in, n_out) for _ in range(2))


class Decoder(nn.Module):
    """From channels to deviations. It treats every bus by itself, so buses can come in blocks."""

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
    def voltage_bound(self) -> Float[Tensor, ""]:
        """Δ_V, the largest deviation of a voltage [p.u.]."""
        return self.voltage_range.clamp(min=self.config.voltage_range_floor)

    def draw_noise(self, generator: torch.Generator | None = None) -> Float[Tensor, "2 M H"]:
        """One shock of P and one of Q for each scenario and step, shared by the whole grid."""
        size = (2, self.config.scenarios, self.horizon)
        device = self.scenario.device if generator is None else generator.device
        noise = torch.randn(size, device=device, generator=generator)
        if self.config.noise == "student-t":
            shape = torch.full(size, self.config.student_degrees / 2, device=device)
            gamma = torch._standard_gamma(shape, generator=generator)
            noise = noise / (gamma * 2 / self.config.student_degrees).sqrt()
        return noise.to(self.scenario.device)

    def forward(
        self, state: Float[Tensor, "B N 4 K"], noise: Float[Tensor, "2 M H"] | None
    ) -> Deviations:
        """The deviations of these buses; without noise, P and Q are their means."""
        of = state.unbind(2)
        p, q = (self._power(source, of[source], noise) for source in (P, Q))
        gates = [
            self._split(head, of[kind]) for head, kind in zip(self.gate, (V, THETA), strict=True)
        ]
        if self.bridge is not None:
            seen = self.bridge(torch.stack(of[V:], dim=2), self.scenario, p, q, list(self.gate))
            gates = [gate + more for gate, more in zip(gates, seen, strict=True)]
        return Deviations(p, q, self.voltage_bound * gates[0].tanh(), pi * gates[1].tanh())

    def _power(
        self, source: int, state: Float[Tensor, "B N K"], noise: Float[Tensor, "2 M H"] | None
    ) -> Float[Tensor, "B N M H"]:
        mean = self._split(self.mean[source], state)
        if noise is None:
            return mean
        return mean + F.softplus(self._split(self.spread[source], state)) * noise[source]

    def _split(self, head: nn.Linear, state: Float[Tensor, "B N K"]) -> Float[Tensor, "B N M H"]:
        """The head of h + e_m for all m: two projections, added."""
        of_channel, of_scenario = head(state), F.linear(self.scenario, head.weight)
        full = self.scenario.dtype  # what comes out of a head is never rounded to half precision
        return of_channel.to(full).unsqueeze(2) + of_scenario.to(full)


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

    def forward(
        self,
        state: Float[Tensor, "B N 2 K"],
        scenario: Float[Tensor, "M K"],
        p: Float[Tensor, "B N M H"],
        q: Float[Tensor, "B N M H"],
        heads: Sequence[nn.Linear],
    ) -> list[Float[Tensor, "B N M H"]]:
        """What is added to the gates of V and θ, before tanh."""
        logits = [self._logits(k, state, scenario, part) for k, part in enumerate((p, q))]
        share = torch.sigmoid(logits[0] - logits[1])  # of P; the rest is of Q
        added = []
        for kind, head in enumerate(heads):
            of_p, of_q = (self._seen(k, part, head) for k, part in enumerate((p, q)))
            mixed = of_q + share[..., kind : kind + 1] * (of_p - of_q)
            added.append(self.scale * mixed.to(self.scale.dtype))
        return added

    def _seen(
        self, source: int, trajectory: Float[Tensor, "B N M H"], head: nn.Linear
    ) -> Float[Tensor, "B N M H"]:
        """A head's view of the value of one source's token."""
        token, value = self.token[source], head.weight @ self.value.weight
        return F.linear(trajectory, value @ token.weight, value @ token.bias)

    def _logits(
        self,
        source: int,
        state: Float[Tensor, "B N 2 K"],
        scenario: Float[Tensor, "M K"],
        trajectory: Float[Tensor, "B N M H"],
    ) -> Float[Tensor, "B N M 2"]:
        """q·k of one source's token, for V and θ.

        It is traj·(W_φᵀ W_kᵀ W_q)(h + e_m): the query, as a direction among trajectories.
        """
        token = self.token[source]
        fold = self.key.weight.T @ self.query.weight / self.query.in_features**0.5
        direction = token.weight.T @ fold  # H K
        of_channel = trajectory @ (state @ direction.T).mT  # B N M 2
        of_scenario = (trajectory @ (direction @ scenario.T)).diagonal(dim1=2, dim2=3)  # B N M
        constant = token.bias @ fold
        rest = (state @ constant).unsqueeze(2) + (scenario @ constant).unsqueeze(1)  # B N M 2
        return of_channel + of_scenario.unsqueeze(3) + rest
