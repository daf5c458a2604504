"""One training step: forward, backward, gradient clipping and the optimiser's update.

A step is hundreds of short GPU commands, and on small grids launching them takes longer than
running them. So a step can be captured once as a CUDA graph and replayed as a single command.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from powerphase.errors import TrainingError
from powerphase.models.framework.configuration import TrainingConfig
from powerphase.models.framework.network import CapturableNetwork, Network
from powerphase.scenarios import Context

WARM_UP_STEPS = 3
"""Steps that run command by command, and are undone, before one is captured."""


def make_optimiser(
    network: nn.Module, config: TrainingConfig, device: torch.device
) -> torch.optim.Optimizer:
    """Adam; on a GPU fused, with a learning rate on the device that a captured step can read."""
    on_gpu = device.type == "cuda"
    groups = [
        {"params": weights, "lr": _rate(config.learning_rate * factor, device)}
        for factor, weights in _groups(network).items()
    ]
    return torch.optim.Adam(
        groups, weight_decay=config.weight_decay, fused=on_gpu, capturable=on_gpu
    )


def _groups(network: nn.Module) -> dict[float, list[nn.Parameter]]:
    """The parameters by the factor on their learning rate; those without one come first."""
    factors = network.rate_factors if isinstance(network, Network) else {}
    groups: dict[float, list[nn.Parameter]] = {1.0: []}
    for name, weight in network.named_parameters():
        groups.setdefault(factors.get(name, 1.0), []).append(weight)
    return groups


def _rate(rate: float, device: torch.device) -> float | Tensor:
    return torch.tensor(rate, device=device) if device.type == "cuda" else rate


def set_rates(optimiser: torch.optim.Optimizer, rates: Sequence[float]) -> None:
    """Set the learning rate of each group, in place so that a captured step sees it."""
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def is_captured(network: nn.Module, device: torch.device, n_processes: int) -> bool:
    """Whether steps are captured: on a GPU, in a single process, if the network allows it.

    Communication between processes cannot be captured.
    """
    capturable = isinstance(network, CapturableNetwork) and network.is_capturable
    return device.type == "cuda" and n_processes == 1 and capturable


class Stepper:
    """Takes training steps.

    Args:
        network: returns `Losses` for a context and a target; a `CapturableNetwork` if steps are to
            be captured.
        optimiser: from `make_optimiser`.
        config: of the training.
        device: where the network is.
        capture: capture a step and replay it; all batches must then have one size.
    """

    def __init__(
        self,
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
        config: TrainingConfig,
        device: torch.device,
        capture: bool = False,
    ) -> None:
        self.network, self.optimiser, self.config = network, optimiser, config
        self.device, self.capture = device, capture
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._parts: dict[str, Tensor] = {}

    def __call__(self, context: Context, target: Tensor) -> dict[str, Tensor]:
        """Take a step; return the parts of the loss, the loss and the norm of its gradient."""
        if not self.capture:
            return self._step(self.network, context, target)
        assert isinstance(self.network, CapturableNetwork)
        self._set_inputs(self.network.inputs(context, target))
        if self._graph is None:
            self._warm_up(self.network)
            self._graph = self._capture(self.network)
        self._graph.replay()
        numbers = torch.stack(list(self._parts.values()))  # a replay overwrites the originals
        return dict(zip(self._parts, numbers.unbind(), strict=True))

    def _set_inputs(self, inputs: tuple[Tensor, ...]) -> None:
        """Copy the inputs to the tensors that the captured step reads."""
        if not self._inputs:
            self._inputs = tuple(torch.empty_like(value) for value in inputs)
        for buffer, value in zip(self._inputs, inputs, strict=True):
            if buffer.shape != value.shape:
                sizes = f"{tuple(buffer.shape)}, and now {tuple(value.shape)}"
                raise TrainingError(
                    f"a step was captured for a batch of {sizes}; give batches of one size"
                )
            buffer.copy_(value)

    @torch.no_grad()
    def _warm_up(self, network: CapturableNetwork) -> None:
        """Take some steps and undo them: they compile kernels and do what is set up only once.

        So every step that counts is a replay, and a training that continues after a kill takes the
        same steps as one that was not killed.
        """
        weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        state = self.optimiser.state
        moments = {key: {n: t.clone() for n, t in kept.items()} for key, kept in state.items()}
        random = torch.cuda.get_rng_state(self.device)
        with _on_capture_stream(self.device), torch.enable_grad():
            for _ in range(WARM_UP_STEPS):
                self._step(network.losses, *self._inputs)
        for name, tensor in network.state_dict().items():
            tensor.copy_(weights[name])
        for key, kept in state.items():
            for name, tensor in kept.items():
                tensor.copy_(moments[key][name]) if key in moments else tensor.zero_()
        torch.cuda.set_rng_state(random, self.device)

    def _capture(self, network: CapturableNetwork) -> torch.cuda.CUDAGraph:
        self.optimiser.zero_grad()
        torch.cuda.empty_cache()  # a graph has memory of its own
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=_capture_stream(self.device)):
            self._parts = self._step(network.losses, *self._inputs)
        return graph

    def _step(self, losses: Callable[..., Any], *inputs: Any) -> dict[str, Tensor]:
        half = self.config.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            loss, parts = losses(*inputs)
        self.optimiser.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip_norm)
        self.optimiser.step()
        return {**parts, "loss": loss.detach(), "gradient norm": norm}


class CapturedFunction:
    """A function of tensors, without gradients, that a GPU runs as one command.

    It is captured at the first call with tensors of given sizes and replayed from then on. The next
    call overwrites the result of the last. On a CPU the function is simply called.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Tensor]] = {}

    @torch.no_grad()
    def __call__(self, *inputs: Tensor) -> Tensor:
        """The function's result for these tensors."""
        if inputs[0].device.type != "cuda":
            return self.function(*inputs)
        sizes = tuple(tensor.shape for tensor in inputs)
        if sizes not in self._graphs:
            self._graphs[sizes] = self._capture(inputs)
        graph, buffers, result = self._graphs[sizes]
        for buffer, value in zip(buffers, inputs, strict=True):
            buffer.copy_(value)
        graph.replay()
        return result

    def _capture(
        self, inputs: tuple[Tensor, ...]
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Tensor]:
        device, buffers = inputs[0].device, tuple(tensor.clone() for tensor in inputs)
        with _on_capture_stream(device):
            self.function(*buffers)  # compiles kernels, which a capture cannot
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=_capture_stream(device)):
            result = self.function(*buffers)
        return graph, buffers, result


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all trainings: matrix products keep a workspace for every stream they ever saw."""
    return torch.cuda.Stream(device)


@contextmanager
def _on_capture_stream(device: torch.device) -> Iterator[None]:
    """Run on the stream on which steps are captured."""
    main, side = torch.cuda.current_stream(device), _capture_stream(device)
    side.wait_stream(main)
    try:
        with torch.cuda.stream(side):
            yield
    finally:
        main.wait_stream(side)
