"""The training loop of all models that are networks.

Everything random is addressed: batch k, and the dropout and noise of step k, are fixed by the seed
and k. So a training that was killed and continues from its last saved state ends with the same
weights, bit for bit, as one that was not, and no random state has to be saved.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf, isfinite
from time import perf_counter
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau

from powerphase.cost import hardware
from powerphase.errors import TrainingError
from powerphase.models.framework.checkpoint import load_into, state_errors
from powerphase.models.framework.configuration import TrainingConfig
from powerphase.models.framework.device import ProcessGroup, process_group
from powerphase.models.framework.network import Losses, Network
from powerphase.models.framework.stepping import Stepper, is_captured, make_optimiser, set_rates
from powerphase.scenarios import Batches, Context, Training
from powerphase.seeds import stream

VALIDATION_SHARE = 4
"""The size of a training batch divided by that of a validation batch, which is scored too."""

SAVE_SECONDS = 5.0
"""The least time between saves: on a GPU an epoch can take less time than saving it."""


class Progress(NamedTuple):
    """Progress of a training."""

    step: int
    steps: int
    loss: float | None = None
    """Mean of the last epoch."""
    validation: float | None = None
    """The criterion on the validation windows, after the last epoch."""
    criterion: str = "loss"


OnProgress = Callable[[Progress], None]


@runtime_checkable
class CheckpointStore(Protocol):
    """Where a training saves its best weights, its state and its log."""

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last saved state, if there is one."""

    def save_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Save what is needed to continue."""

    def best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The best weights, and the facts saved with them."""

    def save_best(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Save the best weights so far."""

    def log(self, line: Mapping[str, Any]) -> None:
        """Add the numbers of an epoch to the log."""

    def curve(self) -> list[dict[str, Any]]:
        """The lines of the log."""


class Trainer:
    """One training of one network.

    The weights of the epoch with the best criterion are kept. A later stage of the training starts
    from the best weights before it, with a fresh optimiser and schedule, and by the same criterion:
    if the stage does not improve it, its weights are not kept.
    """

    def __init__(
        self,
        network: Network,
        train: Training,
        config: TrainingConfig,
        seed: int,
        device: torch.device,
        checkpoints: CheckpointStore,
        on_progress: OnProgress | None = None,
    ) -> None:
        if config.batch_size is None:
            raise TrainingError("a training needs a batch size; set batch_size")
        if len(train.validation) == 0:
            raise TrainingError(
                f"{len(train.record)} training steps leave no validation window; make a longer "
                "record, of 30 days or more"
            )
        self.network, self.train, self.config = network.to(device), train, config
        self.seed, self.device, self.checkpoints = seed, device, checkpoints
        self._report = on_progress or (lambda progress: None)
        self._reset_optimiser()
        self.criterion, self.stages = config.criterion, network.stages
        self.stage = 0
        self.epoch, self.best, self.seconds = 0, inf, 0.0
        self.hardware: list[str] = []
        """All machines that the training has run on."""
        self.continued = False
        self._saved = -inf
        self._last: tuple[float | None, float | None] = (None, None)

    def _reset_optimiser(self) -> None:
        config = self.config
        self.optimiser = make_optimiser(self.network, config, self.device)
        self.schedule = ReduceLROnPlateau(
            self.optimiser, factor=config.factor, patience=config.patience
        )

    def run(self) -> None:
        """Train to the end of the budget, from the last saved state if there is one."""
        with process_group(self.device) as group, self._settings():
            size = self.config.batch_size or 1
            if size % group.size:
                raise TrainingError(
                    f"a batch of {size} cannot be divided among {group.size} processes; choose "
                    "a batch size that can"
                )
            self._train(group, size)

    def _train(self, group: ProcessGroup, size: int) -> None:
        saved = self.checkpoints.load_state()
        if saved is not None:
            with state_errors("the saved training"):
                self._restore(*saved)
            self.continued = True
        group.check_epoch(self.epoch)
        if self.epoch == self.config.epochs:
            return
        batches = self.train.batches(size, self.seed, self.device)
        if saved is None:
            self.network.prepare(batches)
        batches.share = group.shard
        at_once = max(1, size // group.size // VALIDATION_SHARE)
        windows = self.train.validation.load(at_once, self.device)[group.shard]
        step = self._stepper(group)
        while self.epoch < self.config.epochs:
            start = perf_counter()
            if self.epoch in self.stages[self.stage :]:
                self._start_stage(group)
                step = self._stepper(group)
            numbers = self._epoch(step, batches, group)
            self._finish_epoch(numbers, self._validate(windows, group), start, group)
        group.wait()

    def _start_stage(self, group: ProcessGroup) -> None:
        """Start from the best weights; save, since the best may soon be of the stage itself."""
        group.wait()
        load_into(self.network, self.checkpoints.best()[0], "the best weights so far")
        self.stage += 1
        self.network.enter(self.stage)
        self._reset_optimiser()
        if group.is_rank_zero:
            self.checkpoints.save_state(*self._state())

    def _stepper(self, group: ProcessGroup) -> Stepper:
        alone = group.size == 1
        network = self.network if alone else DistributedDataParallel(self.network)
        captured = is_captured(self.network, self.device, group.size)
        return Stepper(network, self.optimiser, self.config, self.device, captured)

    def _epoch(
        self, step: Stepper, batches: Batches, group: ProcessGroup
    ) -> dict[str, list[float]]:
        """Take the steps of an epoch; return the parts of the loss and the gradient norms."""
        self.network.train()
        rows: list[Tensor] = []
        names: list[str] = []
        first = self.epoch * self.config.batches_per_epoch
        for number in range(first, first + self.config.batches_per_epoch):
            seed_torch(self.device, self.seed, "step", number, group.rank)
            with self._out_of_memory(f"step {number + 1}"):
                parts = step(*batches[number])
            names = list(parts)
            rows.append(torch.stack(list(parts.values())))
            if group.is_rank_zero:
                self._report(Progress(number + 1, self.config.steps, *self._last, self.criterion))
        # One copy at the end of an epoch: a step that waited for its numbers would idle the GPU.
        table = (group.total(torch.stack(rows)) / group.size).cpu()
        numbers = {name: table[:, k].tolist() for k, name in enumerate(names)}
        self._check_finite(numbers, first)
        return numbers

    def _check_finite(self, numbers: dict[str, list[float]], first: int) -> None:
        """Raise at the first step whose loss is not finite, and name the parts that are not."""
        for step, values in enumerate(zip(*numbers.values(), strict=True), start=first + 1):
            named = zip(numbers, values, strict=True)
            lost = [f"{name} became {value}" for name, value in named if not isfinite(value)]
            if lost:
                kept = f"the best weights of {self.epoch} epochs and the last saved state are kept"
                raise TrainingError(
                    f"step {step}: {', '.join(lost)}; {kept if self.epoch else 'nothing is kept'}; "
                    "lower learning_rate, or try the precision float32"
                )

    @torch.no_grad()
    def _validate(self, windows: list[Any], group: ProcessGroup) -> float:
        """Mean of the criterion on the validation windows, for checkpoints and the schedule."""
        self.network.eval()
        seed_torch(self.device, self.seed, "validation")
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with self._out_of_memory("validation"):
            for context, target in windows:
                total += len(target) * self._criterion(context, target)
        return float(group.total(total)) / len(self.train.validation)

    def _criterion(self, context: Context, target: Tensor) -> Tensor:
        """The criterion of these windows."""
        if self.criterion == "crps":
            return self.network.crps(context, target)
        losses: Losses = self.network(context, target)
        return losses.loss

    def _finish_epoch(
        self, numbers: dict[str, list[float]], validation: float, start: float, group: ProcessGroup
    ) -> None:
        rate = float(self.optimiser.param_groups[0]["lr"])
        self.schedule.step(validation)
        self.epoch += 1
        machine = hardware(self.device)
        machine = machine if group.size == 1 else f"{group.size} × {machine}"
        if machine not in self.hardware:
            self.hardware.append(machine)
        self.seconds += perf_counter() - start
        better = validation < self.best
        self.best = min(self.best, validation)
        means = {name: sum(values) / len(values) for name, values in numbers.items()}
        loss, norm = means.pop("loss"), means.pop("gradient norm")
        self._last = (loss, validation)
        if not group.is_rank_zero:
            return
        facts = {"epoch": self.epoch, f"validation_{self.criterion}": validation}
        if better:
            self.checkpoints.save_best(self.network.state_dict(), facts)
        self.checkpoints.log(
            {
                "epoch": self.epoch,
                "step": self.epoch * self.config.batches_per_epoch,
                "loss": loss,
                **{f"loss/{name}": value for name, value in means.items()},
                "gradient_norm": norm,
                "learning_rate": float(f"{rate:.6g}"),  # on a GPU it has the digits of float32
                f"validation_{self.criterion}": validation,
                "seconds": self.seconds,
            }
        )
        if self.epoch == self.config.epochs or perf_counter() - self._saved >= SAVE_SECONDS:
            self.checkpoints.save_state(*self._state())
            self._saved = perf_counter()

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `_restore` needs."""
        tensors = {f"network.{name}": t for name, t in self.network.state_dict().items()}
        for number, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": t for name, t in state.items()}
        facts = {
            "epoch": self.epoch,
            "stage": self.stage,
            "best": self.best,
            # Infinite when a stage has just started, which JSON cannot hold.
            "schedule_best": self.schedule.best if isfinite(self.schedule.best) else None,
            "seconds": self.seconds,
            "hardware": self.hardware,
            "learning_rates": [float(group["lr"]) for group in self.optimiser.param_groups],
            "bad_epochs": self.schedule.num_bad_epochs,
            "last": self._last,
        }
        return tensors, facts

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Restore the saved state."""
        split: dict[str, dict[str, Tensor]] = {"network": {}, "optimiser": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            split[part][rest] = tensor
        load_into(self.network, split["network"], "the saved training")
        self.stage = facts.get("stage", 0)
        if self.stage:
            self.network.enter(self.stage)
        optimiser = self.optimiser.state_dict()
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in split["optimiser"].items():
            number, _, rest = name.partition(".")
            state.setdefault(int(number), {})[rest] = tensor
        self.optimiser.load_state_dict({**optimiser, "state": state})
        set_rates(self.optimiser, facts["learning_rates"])
        best = facts["schedule_best"]
        self.schedule.best = inf if best is None else best
        self.schedule.num_bad_epochs = facts["bad_epochs"]
        self.epoch, self.best, self.seconds = facts["epoch"], facts["best"], facts["seconds"]
        self.hardware, self._last = list(facts.get("hardware", [])), tuple(facts["last"])

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """Set torch's seeds and switches for a training, and restore them afterwards."""
        on_gpu, cudnn = self.device.type == "cuda", torch.backends.cudnn
        exact = self.config.precision == "float32"
        before, strict = torch.get_float32_matmul_precision(), torch.get_deterministic_debug_mode()
        with (
            torch.random.fork_rng(devices=[self.device] if on_gpu else []),
            cudnn.flags(cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=not exact),
        ):
            if on_gpu:
                torch.set_float32_matmul_precision("highest" if exact else "high")
            try:
                yield
            finally:
                torch.set_float32_matmul_precision(before)
                # Attention switches it during a backward pass, which may raise.
                torch.set_deterministic_debug_mode(strict)

    @contextmanager
    def _out_of_memory(self, where: str) -> Iterator[None]:
        """If memory runs out, raise an error that says what to lower."""
        try:
            yield
        except (torch.OutOfMemoryError, RuntimeError) as error:
            is_memory = isinstance(error, torch.OutOfMemoryError) or "can't allocate" in str(error)
            if not is_memory:
                raise
            raise TrainingError(
                f"{where}: {self.device} is out of memory with a batch of "
                f"{self.config.batch_size} and {self.train.layout.n_channels:,} channels; give "
                "--channel-block, which takes longer, or a smaller --batch-size"
            ) from error


def seed_torch(device: torch.device, seed: int, *labels: str | int) -> None:
    """Seed torch on the CPU and the device from the seed and the labels."""
    number = int(stream(seed, *labels).integers(2**63))
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(number)
