"""The flow as in its papers and the reference: masks, full tensors, plain autograd."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from powerphase.models.flows import Coupling, RealNVP


class MaskedCoupling(nn.Module):
    """Two networks of all channels behind a mask, then a batch normalisation.

    Args:
        ours: coupling whose weights are copied; weights without effect behind the mask are random.
        n_channels: channels.
        mask: 0 where channels are transformed.
    """

    networks: Any

    def __init__(self, ours: Coupling, n_channels: int, mask: Tensor) -> None:
        super().__init__()
        self.ours, self.mask = ours, mask
        self.moving, self.still = mask == 0, mask == 1
        self.condition, width = ours.known.shape
        inputs = self.condition + n_channels
        self.networks = nn.ModuleList(
            _network(inputs, width // 2, n_channels, kind) for kind in (nn.Tanh, nn.ReLU)
        ).to(ours.known)
        for number, network in enumerate(self.networks):
            self._copy_weights(network, number)
        self.log_gamma, self.beta, self.mean, self.variance = (
            self._merge_halves(name) for name in ("log_gamma", "beta", "mean", "variance")
        )

    @torch.no_grad()
    def _copy_weights(self, network: Any, number: int) -> None:
        ours, hidden = self.ours, network[0].out_features
        columns = slice(number * hidden, (number + 1) * hidden)
        network[0].weight[:, : self.condition] = ours.known[:, columns].T
        network[0].weight[:, self.condition :][:, self.still] = ours.still[:, columns].T
        network[0].bias.copy_(ours.bias[columns])
        layers = (ours.scale, ours.shift)[number]
        network[2].load_state_dict(layers[1].state_dict())
        network[4].load_state_dict(layers[3].state_dict())
        network[6].weight[self.moving] = ours.last_weight[number]
        network[6].bias[self.moving] = ours.last_bias[number]

    def _merge_halves(self, name: str) -> Tensor:
        merged = torch.empty_like(self.mask)
        merged[self.moving] = getattr(self.ours.norm_moving, name).detach()
        merged[self.still] = getattr(self.ours.norm_still, name).detach()
        return merged.requires_grad_(name in ("log_gamma", "beta"))

    def forward(self, values: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Values after the coupling, and the log-determinant by channel."""
        inputs = torch.cat([condition, self.mask * values], dim=-1)
        log_scale = torch.tanh(self.networks[0](inputs)) * (1 - self.mask)
        values = values * log_scale.exp() + self.networks[1](inputs) * (1 - self.mask)
        mean, variance = self.mean, self.variance
        if self.training:
            rows = values.flatten(0, -2)
            mean, variance = rows.mean(0), rows.var(0)
            self.mean = 0.9 * self.mean + 0.1 * mean.detach()
            self.variance = 0.9 * self.variance + 0.1 * variance.detach()
        values = self.log_gamma.exp() * (values - mean) / (variance + 1e-5).sqrt() + self.beta
        return values, log_scale + self.log_gamma - (variance + 1e-5).log() / 2

    def gradients(self) -> dict[str, Tensor]:
        """Gradients by the names of our parameters."""
        first = [network[0].weight.grad.T for network in self.networks]
        last = [network[6] for network in self.networks]
        gradients = {
            "known": torch.cat([weight[: self.condition] for weight in first], dim=1),
            "still": torch.cat([weight[self.condition :][self.still] for weight in first], dim=1),
            "bias": torch.cat([network[0].bias.grad for network in self.networks]),
            "last_weight": torch.stack([layer.weight.grad[self.moving] for layer in last]),
            "last_bias": torch.stack([layer.bias.grad[self.moving] for layer in last]),
        }
        for name, network in zip(("scale", "shift"), self.networks, strict=True):
            for our_number, number in ((1, 2), (3, 4)):
                gradients[f"{name}.{our_number}.weight"] = network[number].weight.grad
                gradients[f"{name}.{our_number}.bias"] = network[number].bias.grad
        for name in ("log_gamma", "beta"):
            gradients[f"norm_moving.{name}"] = getattr(self, name).grad[self.moving]
            gradients[f"norm_still.{name}"] = getattr(self, name).grad[self.still]
        return gradients


class MaskedFlow(nn.Module):
    """A flow of masked couplings with the weights of ours."""

    couplings: Any

    def __init__(self, ours: RealNVP) -> None:
        super().__init__()
        couplings: Any = ours.couplings
        mask = (torch.arange(ours.n_channels) % 2).to(couplings[0].known)
        self.couplings = nn.ModuleList(
            MaskedCoupling(coupling, ours.n_channels, mask if k % 2 == 0 else 1 - mask)
            for k, coupling in enumerate(couplings)
        )
        self.centre, self.width = ours.centre.clone(), ours.width.clone()
        self.train(ours.training)

    def forward(self, values: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Noise, and the log-determinant by channel."""
        values = (values - self.centre) / self.width
        total = torch.zeros_like(values) - self.width.log()
        for coupling in self.couplings:
            values, determinant = coupling(values, condition)
            total = total + determinant
        return values, total

    def negative_log_likelihood(self, values: Tensor, condition: Tensor) -> Tensor:
        """Summed over channels, mean over rows."""
        noise, determinant = self(values, condition)
        normal: Any = torch.distributions.Normal(torch.zeros_like(noise), 1)
        loss: Tensor = -(normal.log_prob(noise) + determinant).sum(-1).mean()
        return loss


def _network(inputs: int, hidden: int, outputs: int, kind: type[nn.Module]) -> nn.Sequential:
    *layers, last = [
        nn.Linear(n_in, n_out) for n_in, n_out in pairwise([inputs, *[hidden] * 3, outputs])
    ]
    return nn.Sequential(*[part for layer in layers for part in (layer, kind())], last)
