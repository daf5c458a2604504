"""The training loop: fixed by its seed, chosen by validation, with errors that say what to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import inf, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.dataset import Store
from powerphase.errors import ConfigError, ForecastError, TaskError, TrainingError
from powerphase.metrics import Scorer
from powerphase.models.framework import (
    Domain,
    Header,
    Network,
    ProcessGroup,
    Progress,
    RunFolder,
    Trainer,
    TrainingConfig,
    read_tensors,
)
from powerphase.models.framework import training as training_module
from powerphase.models.powerforge import PowerForge
from powerphase.scenarios import Scenarios, Training
from powerphase.task import Task
from tests.models.toys import (
    CONTEXT,
    CPU,
    HORIZON,
    Scripted,
    Shelf,
    Toy,
    ToyModel,
    flat_training,
    same_weights,
    tiny,
    wavy_training,
)
from tests.models.typed import network_of, outcome_of


class ScriptedModel(ToyModel):
    """A forecaster with a scripted network."""

    def __init__(
        self, scores: list[float], width: Callable[[int], float] = lambda step: 0.0
    ) -> None:
        super().__init__()
        self.scripted = Scripted(scores, width=width)

    def make_network(self, domain: Domain) -> Network:
        return self.scripted


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, context=192, horizon=24)


@pytest.fixture(scope="module")
def trained(task: Task) -> PowerForge:
    model = PowerForge(tiny())
    model.fit(task.training)
    return model


def run(
    network: Network, train: Training | None = None, checkpoints: Any = None, **changes: Any
) -> Shelf:
    """Train the network on the flat record, or another one."""
    budget = {"epochs": 3, "batches_per_epoch": 3, "batch_size": 4, "weight_decay": 0.0}
    shelf = Shelf() if checkpoints is None else checkpoints
    config = TrainingConfig(**{**budget, "criterion": "crps", **changes})
    Trainer(network, train or flat_training(), config, 42, CPU, shelf).run()
    return shelf


def test_a_seed_fixes_every_bit_of_the_weights(task: Task, trained: PowerForge) -> None:
    torch.manual_seed(8)  # the caller's random state does not matter
    again, other = PowerForge(tiny()), PowerForge(tiny(), seed=1)
    for model in (again, other):
        model.fit(task.training)
    assert same_weights(trained.network, again.network)
    assert not same_weights(trained.network, other.network)


def test_the_seed_fixes_initial_weights_batches_and_dropout() -> None:
    """Each of the three alone changes the weights."""

    def trained_from(weights: int, batches: int, p: float) -> Toy:
        torch.manual_seed(weights)
        network = Toy()
        network.dropout.p = p
        config = TrainingConfig(epochs=1, batches_per_epoch=2, batch_size=4)
        Trainer(network, wavy_training(), config, batches, CPU, Shelf()).run()
        return network

    first = trained_from(weights=1, batches=1, p=0.3)
    assert same_weights(first, trained_from(weights=1, batches=1, p=0.3))
    assert not same_weights(first, trained_from(weights=2, batches=1, p=0.3))
    assert not same_weights(first, trained_from(weights=1, batches=2, p=0.3))
    assert not same_weights(first, trained_from(weights=1, batches=1, p=0.0))


def test_seed_and_number_fix_the_random_numbers_of_a_step() -> None:
    def draws(seed: int, epochs: int, per_epoch: int) -> list[float]:
        seen: list[float] = []

        def width(step: int) -> float:
            seen.append(float(torch.rand(())))
            return 0.0

        network = Scripted([1.0] * 6, per_epoch, width)
        config = TrainingConfig(epochs, per_epoch, batch_size=4, criterion="crps")
        Trainer(network, flat_training(), config, seed, CPU, Shelf()).run()
        return seen

    first = draws(seed=42, epochs=2, per_epoch=3)
    assert len(set(first)) == 6
    assert draws(seed=42, epochs=6, per_epoch=1) == first
    assert not set(draws(seed=1, epochs=2, per_epoch=3)) & set(first)


@pytest.mark.parametrize(
    ("precision", "products"), [("float32", "highest"), ("tf32", "high"), ("bfloat16", "high")]
)
def test_precision_sets_that_of_matrix_products_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, precision: Any, products: str
) -> None:
    config = TrainingConfig(batch_size=4, precision=precision)
    trainer = Trainer(Toy(), flat_training(), config, 42, CPU, Shelf())
    trainer.device = torch.device("cuda")
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    before = torch.get_float32_matmul_precision()
    with trainer._settings():
        assert torch.get_float32_matmul_precision() == products
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark
    assert torch.get_float32_matmul_precision() == before


def fails(step: int) -> float:
    raise ValueError("the network is at fault")


@pytest.mark.parametrize("width", [lambda step: 0.0, fails])
def test_a_training_restores_the_caller_s_random_state_and_precision(
    width: Callable[[int], float],
) -> None:
    before = torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn
    switches = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic)
    torch.manual_seed(3)
    expected = torch.rand(4)
    try:
        torch.set_float32_matmul_precision("medium")
        torch.manual_seed(3)
        model = ScriptedModel([1.0] * 6, width)
        try:
            model.fit(flat_training())
        except ValueError:
            assert width is fails
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.equal(torch.rand(4), expected)
        assert switches == (cudnn.enabled, cudnn.benchmark, cudnn.deterministic)
    finally:
        torch.set_float32_matmul_precision(before)


def test_cudnn_stays_enabled_during_a_training() -> None:
    seen: list[bool] = []

    def width(step: int) -> float:
        seen.append(torch.backends.cudnn.enabled)
        return 0.0

    run(Scripted([1.0], width=width), epochs=1)
    assert seen == [torch.backends.cudnn.enabled] * 3


def test_validation_equals_the_benchmark_s_crps(task: Task) -> None:
    model = PowerForge(tiny(training={"criterion": "crps"}))
    shelf, windows = Shelf(), task.training.validation
    model.configure(task.training)
    network = model._initial_network()
    trainer = Trainer(network, task.training, model.config.training, 42, CPU, shelf)
    trainer.run()
    network.eval()
    scorer = Scorer(task.layout, windows.horizon, len(windows), CPU)
    for window in range(len(windows)):
        scenarios = network.scenarios(windows.context(window), 42)
        assert isinstance(scenarios, Scenarios)
        scorer.add(window, scenarios, windows.target(window), slice(0, task.layout.n_channels))
    assert shelf.lines[-1]["validation_crps"] == pytest.approx(scorer.result()["crps"], rel=1e-5)


@pytest.mark.parametrize(
    ("scores", "best"), [([3.0, 1.0, 2.0, 1.5], 2), ([2.0, 1.0, 1.0], 2), ([3.0, 2.0, 1.0], 3)]
)
def test_the_best_epoch_by_validation_is_kept(scores: list[float], best: int) -> None:
    shelf = run(Scripted(scores), epochs=len(scores))
    weights, facts = shelf.best()
    assert [line["validation_crps"] for line in shelf.lines] == pytest.approx(scores)
    assert facts == {"epoch": best, "validation_crps": shelf.lines[best - 1]["validation_crps"]}
    assert int(weights["steps"]) == 3 * best
    alone = run(Scripted(scores), epochs=best)
    assert alone.saved is not None
    assert torch.equal(weights["weight"], alone.saved[0]["network.weight"])


def test_a_model_ends_with_the_weights_of_its_best_epoch() -> None:
    model = ScriptedModel([3.0, 1.0, 2.0, 1.5, 1.0, 4.0])
    model.fit(flat_training())
    assert int(network_of(model).get_buffer("steps")) == 6
    assert outcome_of(model)["best_epoch"] == 2
    assert outcome_of(model)["validation_crps"] == pytest.approx(1.0)
    assert not network_of(model).training


def test_the_learning_rate_is_halved_after_patience_and_one_more_epochs() -> None:
    shelf = run(Scripted([1.0] * 8), epochs=8, patience=2, learning_rate=0.5)
    rates = [line["learning_rate"] for line in shelf.lines]
    assert rates == [0.5] * 4 + [0.25] * 3 + [0.125]


def test_a_better_validation_keeps_the_learning_rate() -> None:
    shelf = run(Scripted([0.9**k for k in range(8)]), epochs=8, patience=0, learning_rate=0.5)
    assert {line["learning_rate"] for line in shelf.lines} == {0.5}


@pytest.mark.parametrize(("gradient", "left"), [(1e6, 1e-6), (0.1, 1.0)])
def test_a_gradient_is_clipped_and_its_norm_before_is_logged(gradient: float, left: float) -> None:
    """Adam's first moment after one step is a tenth of the gradient."""
    shelf = run(Scripted([1.0], 1, gradient=gradient), epochs=1, batches_per_epoch=1, clip_norm=2.0)
    norm = gradient * sqrt(4)
    assert shelf.lines[0]["gradient_norm"] == pytest.approx(norm)
    assert shelf.saved is not None
    moment = shelf.saved[0]["optimiser.0.exp_avg"].norm().item()
    assert moment == pytest.approx(0.1 * min(norm, 2.0), rel=1e-4)
    assert moment == pytest.approx(0.1 * norm * left, rel=1e-4)


def test_a_line_of_the_log_is_the_mean_of_its_epoch() -> None:
    shelf = run(Scripted([1.0, 1.0], width=float), epochs=2)
    assert [line["loss/width"] for line in shelf.lines] == [2.0, 5.0]
    assert [(line["epoch"], line["step"]) for line in shelf.lines] == [(1, 3), (2, 6)]
    for line in shelf.lines:
        assert line["loss"] == pytest.approx(line["loss/height"] + line["loss/width"])
        assert line["seconds"] > 0


def test_progress_counts_steps_and_reports_the_last_epoch() -> None:
    seen: list[Progress] = []
    config = TrainingConfig(epochs=2, batches_per_epoch=3, batch_size=4, criterion="crps")
    shelf = Shelf()
    Trainer(Scripted([2.0, 1.0]), flat_training(), config, 42, CPU, shelf, seen.append).run()
    assert [(now.step, now.steps) for now in seen] == [(k, 6) for k in range(1, 7)]
    assert [now.validation for now in seen] == [None] * 3 + [2.0] * 3
    assert [now.loss for now in seen] == [None] * 3 + [shelf.lines[0]["loss"]] * 3


def test_half_precision_trains_and_stays_finite(task: Task) -> None:
    curves = []
    for precision in ("bfloat16", "float32"):
        model, shelf = PowerForge(tiny(training={"precision": precision})), Shelf()
        model.configure(task.training)
        network = model._initial_network()
        Trainer(network, task.training, model.config.training, 42, CPU, shelf).run()
        assert all(np.isfinite(list(line.values())).all() for line in shelf.lines)
        assert {tensor.dtype for tensor in network.state_dict().values()} == {torch.float32}
        curves.append([line["loss"] for line in shelf.lines])
    assert curves[0] != curves[1]
    assert curves[0] == pytest.approx(curves[1], rel=0.05)


def folder(path: Path) -> RunFolder:
    domain = Domain.of(flat_training().layout, CONTEXT, HORIZON)
    return RunFolder(path, Header("toy", {}, 42, domain))


@pytest.mark.parametrize("lost", [nan, inf])
def test_a_loss_that_is_not_finite_names_its_step_and_keeps_the_best_weights(
    lost: float, tmp_path: Path
) -> None:
    checkpoints = folder(tmp_path / "run")
    network = Scripted([2.0, 3.0, 1.0], width=lambda step: lost if step == 7 else 0.0)
    with (
        checkpoints.start(),
        pytest.raises(TrainingError, match=rf"step 7: width became {lost}, .*2 epochs"),
    ):
        run(network, checkpoints=checkpoints)
    again = RunFolder.open(tmp_path / "run")
    weights, facts = again.best()
    assert (facts["epoch"], int(weights["steps"])) == (1, 3)
    saved = again.load_state()
    assert saved is not None
    assert (saved[1]["epoch"], int(saved[0]["network.steps"])) == (2, 6)
    assert [line["epoch"] for line in again.curve()] == [1, 2]
    assert torch.isfinite(read_tensors(again.weights_file)[0]["weight"]).all()


def test_a_nan_in_the_first_epoch_keeps_nothing() -> None:
    network = Scripted([1.0] * 3, width=lambda step: nan if step == 2 else 0.0)
    with pytest.raises(TrainingError, match="step 2: width became nan"):
        run(network)


def test_a_training_can_continue_after_a_nan(tmp_path: Path) -> None:
    checkpoints = folder(tmp_path / "run")
    with checkpoints.start(), pytest.raises(TrainingError):
        run(
            Scripted([1.0] * 3, width=lambda step: nan if step == 7 else 0.0),
            checkpoints=checkpoints,
        )
    network = Scripted([1.0] * 3)
    with checkpoints.start():
        run(network, checkpoints=checkpoints)
    smooth = Scripted([1.0] * 3)
    run(smooth)
    assert same_weights(network, smooth)


CPU_FULL = "[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory"


def raising(error: Exception, at: int) -> Callable[[int], float]:
    def width(step: int) -> float:
        if step == at:
            raise error
        return 0.0

    return width


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError(CPU_FULL)]
)
def test_out_of_memory_suggests_what_to_lower(error: Exception) -> None:
    with pytest.raises(TrainingError, match=r"step 5: cpu .*--channel-block.*--batch-size"):
        run(Scripted([1.0] * 3, width=raising(error, at=5)))


def test_out_of_memory_in_validation_suggests_what_to_lower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Scripted([1.0] * 3)

    def scenarios(context: object, seed: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(network, "scenarios", scenarios)
    with pytest.raises(TrainingError, match="--batch-size"):
        run(network)


def test_other_errors_of_a_network_are_not_changed() -> None:
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        run(Scripted([1.0] * 3, width=raising(RuntimeError("shapes do not fit"), at=2)))


def test_a_record_without_validation_windows_raises() -> None:
    with pytest.raises(TrainingError, match="100 training steps"):
        run(Toy(), wavy_training(origins=()))


def test_a_record_without_a_window_raises() -> None:
    with pytest.raises(TaskError, match=r"7 steps.* 5 \+ 3"):
        run(Toy(), wavy_training(n_steps=7))


def test_a_training_without_a_batch_size_raises() -> None:
    with pytest.raises(TrainingError, match="batch_size"):
        run(Toy(), batch_size=None)


def test_a_batch_that_does_not_divide_among_processes_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def three(device: torch.device) -> Iterator[ProcessGroup]:
        yield ProcessGroup(0, 3)

    monkeypatch.setattr(training_module, "process_group", three)
    with pytest.raises(TrainingError, match=r"batch of 4 .* 3 processes"):
        run(Toy())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("batches_per_epoch", 0),
        ("batch_size", 0),
        ("batch_size", -4),
        ("learning_rate", 0.0),
        ("clip_norm", 0.0),
        ("weight_decay", -1.0),
        ("patience", -1),
        ("factor", 1.0),
    ],
)
def test_an_invalid_budget_raises(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        TrainingConfig(**{field: value})


def test_all_problems_of_a_budget_are_reported_at_once() -> None:
    with pytest.raises(ConfigError, match=r"epochs.*; factor"):
        TrainingConfig(epochs=0, factor=2.0)


def test_a_model_whose_training_failed_does_not_forecast() -> None:
    """Its weights would be those of the last step, not of the best epoch."""
    model = ScriptedModel([1.0] * 4, raising(ValueError("x"), at=7))
    with pytest.raises(ValueError, match="x"):
        model.fit(flat_training())
    with pytest.raises(ForecastError, match="toy"):
        model.predict(flat_training().validation.context(0))


class Staged(Scripted):
    """Trains in two stages, and records the weights with which the second started."""

    @property
    def stages(self) -> tuple[int, ...]:
        return (2,)

    def __init__(self, scores: list[float]) -> None:
        super().__init__(scores)
        self.starts: list[tuple[int, torch.Tensor]] = []

    def enter(self, stage: int) -> None:
        self.starts.append((stage, self.weight.detach().clone()))


def test_a_stage_starts_from_the_best_weights_at_the_initial_rate() -> None:
    # The script restarts from the best epoch too, so the second score appears twice.
    staged, shelf = Staged([0.2, 0.3, 0.25]), Shelf()
    first = Scripted([0.2])
    run(first, epochs=1, learning_rate=0.1)
    run(staged, checkpoints=shelf, epochs=4, learning_rate=0.1, patience=0)
    ((stage, weight),) = staged.starts
    assert stage == 1
    assert torch.equal(weight, first.weight)
    assert [line["learning_rate"] for line in shelf.lines] == [0.1] * 4


def test_a_stage_keeps_its_rate_while_it_improves_on_itself() -> None:
    """A copula starts worse than independence, and has to improve from there."""
    scores = [0.2, 0.9, 0.8, 0.7, 0.6, 0.6]
    shelf = run(Staged(scores), epochs=7, learning_rate=0.1, patience=0)
    assert [line["validation_crps"] for line in shelf.lines] == pytest.approx(
        [0.2, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6]
    )
    assert [line["learning_rate"] for line in shelf.lines] == [0.1] * 7
    assert shelf.best()[1]["epoch"] == 1
    after = run(Staged([*scores, 0.6]), epochs=8, learning_rate=0.1, patience=0)
    assert after.lines[-1]["learning_rate"] == 0.05


@pytest.mark.parametrize("saved", [0.2, None])
def test_an_infinite_best_score_of_the_schedule_is_saved_as_null(saved: float | None) -> None:
    """A number is read too: earlier versions kept the score of the stage before."""
    first, second = (
        Trainer(Staged([0.2]), flat_training(), TrainingConfig(batch_size=4), 42, CPU, Shelf())
        for _ in range(2)
    )
    tensors, facts = first._state()
    assert facts["schedule_best"] is None
    second._restore(tensors, {**facts, "best": 0.1, "schedule_best": saved})
    assert second.schedule.best == (inf if saved is None else saved)


def test_a_stage_without_improvement_keeps_the_best_weights() -> None:
    shelf = run(Staged([0.2, 0.3, 0.25]), epochs=4)
    assert shelf.best()[1]["epoch"] == 1


class StagedToy(Toy):
    """A toy whose second stage is like the first."""

    @property
    def stages(self) -> tuple[int, ...]:
        return (1,)

    def enter(self, stage: int) -> None:
        pass


class StagedModel(ToyModel):
    """A forecaster with it."""

    def make_network(self, domain: Domain) -> Network:
        return StagedToy()


def test_a_stage_stopped_after_an_improvement_restarts_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        pass

    def stop(now: Progress) -> None:
        if now.step == 7:
            raise Stopped

    monkeypatch.setattr(training_module, "SAVE_SECONDS", 1e9)
    models = [StagedModel(device="cpu", run=tmp_path / name) for name in ("whole", "cut", "cut")]
    models[0].fit(wavy_training())
    models[1].on_progress = stop
    with pytest.raises(Stopped):
        models[1].fit(wavy_training())
    before, kept = RunFolder.open(tmp_path / "cut").curve()[:2]
    assert kept["validation_crps"] < before["validation_crps"]
    models[2].fit(wavy_training())
    assert same_weights(models[0].network, models[2].network)
