"""The flow as its papers and the reference write it: masks, whole tensors, plain autograd."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from powerphase.models.flows.coupling import Coupling
from powerphase.models.flows.realnvp import RealNVP


class PlainCoupling(nn.Module):
    """Two networks of all channels behind a mask, then a batch normalisation.

    Args:
        ours: whose weights it takes; those that a mask leaves without effect are at random.
        n_channels: channels.
        mask: 0 where channels are moved.
    """

    def __init__(self, ours: Coupling, n_channels: int, mask: Tensor) -> None:
        super().__init__()
        self.ours, self.mask = ours, mask
        self.moving, self.still = mask == 0, mask == 1
        wide, width = ours.known.shape
        self.networks = nn.ModuleList(
            _network(wide + n_channels, width // 2, n_channels, kind) for kind in (nn.Tanh, nn.ReLU)
        ).to(ours.known)
        for number, network in enumerate(self.networks):
            self._copy(network, number, wide)
        self.log_gamma, self.beta, self.mean, self.variance = (
            self._joined(name) for name in ("log_gamma", "beta", "mean", "variance")
        )

    @torch.no_grad()
    def _copy(self, network: nn.Sequential, number: int, wide: int) -> None:
        ours, half = self.ours, self.networks[0][0].out_features
        here = slice(number * half, (number + 1) * half)
        network[0].weight[:, :wide] = ours.known[:, here].T
        network[0].weight[:, wide:][:, self.still] = ours.still[:, here].T
        network[0].bias.copy_(ours.bias[here])
        inner = (ours.scale, ours.shift)[number]
        network[2].load_state_dict(inner[1].state_dict())
        network[4].load_state_dict(inner[3].state_dict())
        network[6].weight[self.moving] = ours.last_weight[number]
        network[6].bias[self.moving] = ours.last_bias[number]

    def _joined(self, name: str) -> Tensor:
        found = torch.empty_like(self.mask)
        found[self.moving] = getattr(self.ours.norm_moving, name).detach()
        found[self.still] = getattr(self.ours.norm_still, name).detach()
        return found.requires_grad_(name in ("log_gamma", "beta"))

    def forward(self, values: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Values after it, and the log-determinant by channel."""
        told = torch.cat([known, self.mask * values], dim=-1)
        log_scale = torch.tanh(self.networks[0](told)) * (1 - self.mask)
        values = values * log_scale.exp() + self.networks[1](told) * (1 - self.mask)
        mean, variance = self.mean, self.variance
        if self.training:
            rows = values.flatten(0, -2)
            mean, variance = rows.mean(0), rows.var(0)
            self.mean = 0.9 * self.mean + 0.1 * mean.detach()
            self.variance = 0.9 * self.variance + 0.1 * variance.detach()
        values = self.log_gamma.exp() * (values - mean) / (variance + 1e-5).sqrt() + self.beta
        return values, log_scale + self.log_gamma - (variance + 1e-5).log() / 2

    def gradients(self) -> dict[str, Tensor]:
        """Those of our weights, read from these."""
        first, second = self.networks
        wide = len(self.ours.known)
        into = [one[0].weight.grad.T for one in (first, second)]
        found = {
            "known": torch.cat([one[:wide] for one in into], dim=1),
            "still": torch.cat([one[wide:][self.still] for one in into], dim=1),
            "bias": torch.cat([one[0].bias.grad for one in (first, second)]),
            "last_weight": torch.stack([one[6].weight.grad[self.moving] for one in self.networks]),
            "last_bias": torch.stack([one[6].bias.grad[self.moving] for one in self.networks]),
        }
        for name, network in zip(("scale", "shift"), self.networks, strict=True):
            for mine, theirs in ((1, 2), (3, 4)):
                found[f"{name}.{mine}.weight"] = network[theirs].weight.grad
                found[f"{name}.{mine}.bias"] = network[theirs].bias.grad
        for name in ("log_gamma", "beta"):
            found[f"norm_moving.{name}"] = getattr(self, name).grad[self.moving]
            found[f"norm_still.{name}"] = getattr(self, name).grad[self.still]
        return found


class PlainFlow(nn.Module):
    """All couplings, one after the other."""

    def __init__(self, ours: RealNVP) -> None:
        super().__init__()
        mask = (torch.arange(ours.n_channels) % 2).to(ours.couplings[0].known)
        self.couplings = nn.ModuleList(
            PlainCoupling(one, ours.n_channels, mask if k % 2 == 0 else 1 - mask)
            for k, one in enumerate(ours.couplings)
        )
        self.centre, self.width = ours.centre.clone(), ours.width.clone()
        self.train(ours.training)

    def forward(self, values: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Normal numbers, and the log-determinant by channel."""
        values = (values - self.centre) / self.width
        total = torch.zeros_like(values) - self.width.log()
        for coupling in self.couplings:
            values, found = coupling(values, known)
            total = total + found
        return values, total

    def negative_log_likelihood(self, values: Tensor, known: Tensor) -> Tensor:
        """Summed over channels, mean over rows."""
        normal, determinant = self(values, known)
        law = torch.distributions.Normal(torch.zeros_like(normal), 1)
        return -(law.log_prob(normal) + determinant).sum(-1).mean()


def _network(inputs: int, hidden: int, outputs: int, kind: type[nn.Module]) -> nn.Sequential:
    sizes = [inputs, hidden, hidden, hidden, outputs]
    layers = [nn.Linear(one, other) for one, other in pairwise(sizes)]
    mixed = [part for layer in layers[:-1] for part in (layer, kind())]
    return nn.Sequential(*mixed, layers[-1])
