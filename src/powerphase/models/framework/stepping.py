"""One step of training: forward, backward, clip, and what the optimiser makes of it.

A step is hundreds of short commands to a GPU, and for small grids giving them takes longer than
carrying them out. So a step can be recorded once, as a CUDA graph, and replayed as a whole.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from powerphase.errors import TrainingError
from powerphase.models.framework.training_config import TrainingConfig
from powerphase.scenarios import Context

REHEARSALS = 3
"""Steps that are taken one command at a time, and undone, before one is recorded."""


def make_optimiser(
    network: nn.Module, config: TrainingConfig, device: torch.device
) -> torch.optim.Optimizer:
    """Adam; on a GPU in one command, with a learning rate that a recorded step can follow."""
    on_gpu = device.type == "cuda"
    rate = torch.tensor(config.learning_rate, device=device) if on_gpu else config.learning_rate
    return torch.optim.Adam(
        network.parameters(),
        rate,
        weight_decay=config.weight_decay,
        fused=on_gpu,
        capturable=on_gpu,
    )


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Give all parameters this learning rate, where a recorded step looks for it."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def is_recorded(network: nn.Module, device: torch.device, n_processes: int) -> bool:
    """Whether steps are recorded: on a GPU, by a process alone, if the network is made for it.

    What several processes do together cannot be recorded. A network whose step is so many commands
    that giving them costs nothing beside carrying them out says that it is not `recordable`.
    """
    made_for_it = hasattr(network, "inputs") and getattr(network, "recordable", True)
    return bool(device.type == "cuda" and n_processes == 1 and made_for_it)


class Stepper:
    """Takes steps with a network.

    Args:
        network: gives `Losses` of a context and a target; to be recorded, it also has
            `inputs(context, target)`, a tuple of tensors, and `losses(*inputs)`, which never waits
            for the device.
        optimiser: from `make_optimiser`.
        config: of the training.
        device: where the network is.
        graph: record a step and replay it; all batches must then have one size.
    """

    def __init__(
        self,
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
        config: TrainingConfig,
        device: torch.device,
        graph: bool = False,
    ) -> None:
        self.network, self.optimiser, self.config = network, optimiser, config
        self.device, self.graph = device, graph
        self._recorded: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._parts: dict[str, Tensor] = {}

    def __call__(self, context: Context, target: Tensor) -> dict[str, Tensor]:
        """Take a step; the parts of the loss, the loss itself and the norm of its gradient."""
        if not self.graph:
            return self._step(self.network, context, target)
        self._take(self.network.inputs(context, target))  # type: ignore[operator]
        if self._recorded is None:
            self._rehearse()
            self._recorded = self._record()
        self._recorded.replay()
        numbers = torch.stack(list(self._parts.values()))  # the originals are written over
        return dict(zip(self._parts, numbers.unbind(), strict=True))

    def _take(self, inputs: tuple[Tensor, ...]) -> None:
        """Put the inputs where the recorded step looks for them."""
        if not self._inputs:
            self._inputs = tuple(torch.empty_like(value) for value in inputs)
        for place, value in zip(self._inputs, inputs, strict=True):
            if place.shape != value.shape:
                sizes = f"{tuple(place.shape)}, and now {tuple(value.shape)}"
                raise TrainingError(
                    f"a recorded step was made for a batch of {sizes}; give equal ones"
                )
            place.copy_(value)

    @torch.no_grad()
    def _rehearse(self) -> None:
        """Take some steps and undo them: they settle what is set up once, and compile kernels.

        So all steps that count are replays, and a training that goes on after a kill takes the same
        ones as one that was not killed.
        """
        weights = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        state = self.optimiser.state
        moments = {key: {n: t.clone() for n, t in kept.items()} for key, kept in state.items()}
        random = torch.cuda.get_rng_state(self.device)
        with _aside(self.device), torch.enable_grad():
            for _ in range(REHEARSALS):
                self._step(self.network.losses, *self._inputs)
        for name, tensor in self.network.state_dict().items():
            tensor.copy_(weights[name])
        for key, kept in state.items():
            for name, tensor in kept.items():
                tensor.copy_(moments[key][name]) if key in moments else tensor.zero_()
        torch.cuda.set_rng_state(random, self.device)

    def _record(self) -> torch.cuda.CUDAGraph:
        self.optimiser.zero_grad()
        torch.cuda.empty_cache()  # a recording has memory of its own
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded, stream=_side_stream(self.device)):
            self._parts = self._step(self.network.losses, *self._inputs)
        return recorded

    def _step(self, losses: Any, *inputs: Any) -> dict[str, Tensor]:
        half = self.config.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            loss, parts = losses(*inputs)
        self.optimiser.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip_norm)
        self.optimiser.step()
        return {**parts, "loss": loss.detach(), "gradient norm": norm}


class Replayed:
    """A function of tensors, without slopes, that a GPU carries out as one command.

    It is recorded at the first call with tensors of such sizes, and replayed from then on. What it
    gives is written over by the next call. On a CPU it is simply called.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self._recorded: dict[Any, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Tensor]] = {}

    @torch.no_grad()
    def __call__(self, *inputs: Tensor) -> Tensor:
        """What the function makes of them."""
        if inputs[0].device.type != "cuda":
            return self.function(*inputs)
        sizes = tuple(one.shape for one in inputs)
        if sizes not in self._recorded:
            self._recorded[sizes] = self._record(inputs)
        recorded, places, made = self._recorded[sizes]
        for place, value in zip(places, inputs, strict=True):
            place.copy_(value)
        recorded.replay()
        return made

    def _record(
        self, inputs: tuple[Tensor, ...]
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Tensor]:
        device, places = inputs[0].device, tuple(one.clone() for one in inputs)
        with _aside(device):
            self.function(*places)  # compiles kernels, which a recording cannot
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded, stream=_side_stream(device)):
            made = self.function(*places)
        return recorded, places, made


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all trainings: matrix products keep work space for every stream they ever saw."""
    return torch.cuda.Stream(device)


@contextmanager
def _aside(device: torch.device) -> Iterator[None]:
    """On the stream on which steps are recorded."""
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(main)
    try:
        with torch.cuda.stream(side):
            yield
    finally:
        main.wait_stream(side)
