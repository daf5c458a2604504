"""TimeGrad: loss and paths against the plain form, a correlation it must learn, and its size."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from powerphase.errors import ConfigError, ForecastError
from powerphase.models.framework import (
    PathNoise,
    TrainingConfig,
    apply_variants,
    is_captured,
    window_generators,
)
from powerphase.models.recurrent import Size, Window
from powerphase.models.timegrad import Pieces, TimeGrad, TimeGradConfig, TimeGradNetwork
from powerphase.scenarios import Context, Training
from tests.models.recurrent.toys import CONTEXT, HORIZON, LAGS, tiny, training_of, windows_of
from tests.models.timegrad.plain import plain_noise

REACH = max(LAGS)


def network_of(block: int | None = None, **changes: Any) -> TimeGradNetwork:
    """A network whose last convolution does not start at zero."""
    torch.manual_seed(1)
    network = TimeGradNetwork(tiny(TimeGradConfig, **changes), 8, CONTEXT, HORIZON, block)
    torch.nn.init.normal_(network.denoiser.leave.weight, std=0.1)
    return network.double().eval()


def plain_rows(network: TimeGradNetwork) -> tuple[Tensor, Tensor]:
    """Conditions and z of all rows."""
    past, target, clock, scale = network.inputs(*windows_of())
    condition = network.encoder(Window(past, target, scale), clock)
    values = torch.cat([past, target], dim=1)[:, REACH:] / scale[:, None]
    return condition.flatten(0, 1), values.flatten(0, 1)


@pytest.mark.parametrize("block", [None, 3])
def test_the_loss_and_its_gradients_match_the_plain_form(block: int | None) -> None:
    """Over context and horizon, with one diffusion step for each step of a window."""
    network = network_of(block)
    torch.manual_seed(6)
    loss = network(*windows_of()).loss
    condition, values = plain_rows(network)
    torch.manual_seed(6)
    step = torch.randint(4, (len(values),))
    noise = torch.randn_like(values)
    signal = network.schedule.signal[step, None]
    noisy = signal * values + (1 - signal**2).sqrt() * noise
    expected = (plain_noise(network.denoiser, noisy, condition, step) - noise).square().mean()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    torch.testing.assert_close(
        torch.autograd.grad(loss, trained),
        torch.autograd.grad(expected, trained),
        rtol=1e-8,
        atol=1e-11,
    )


@torch.no_grad()
def test_every_step_of_a_path_is_drawn_by_a_whole_chain() -> None:
    network, (context, _) = network_of(paths=3), windows_of(2)
    paths, seen = network.scenarios(context, 5).values, network.encode(context)
    noise = PathNoise(window_generators(5, context.time, torch.device("cpu")), 3)
    forced = paths.transpose(0, 1).flatten(0, 1) / seen.scale.repeat(3, 1)[:, None]
    past = context.past.repeat(3, 1, 1) / seen.scale.repeat(3, 1)[:, None]
    clock = network._clock(context).repeat(3, 1, 1)
    condition = network.encoder(Window(past, forced, torch.ones(6, 8).double()), clock)[
        :, -HORIZON:
    ]

    def new_noise() -> Tensor:
        return noise.normal(8, past).transpose(0, 1).flatten(0, 1)

    for number in range(HORIZON):
        values = new_noise()
        for step in range(3, -1, -1):
            steps = torch.full((6,), step)
            reverse = network.schedule.reverse_steps[step]
            predicted = plain_noise(network.denoiser, values, condition[:, number], steps)
            values = (values - reverse.noise * predicted) * reverse.scale
            if step:
                values = values + reverse.spread * new_noise()
        torch.testing.assert_close(forced[:, number], values)


def test_training_uses_a_random_subset_of_rows_and_validation_all() -> None:
    """Rows are drawn again for each step, all with the same frequency."""
    network = network_of(rows=10)
    chosen = []
    with torch.no_grad():
        output = torch.arange(51.0).double().reshape(3, 17, 1)
        context, target = windows_of()
        window = Window(context.past, target, torch.ones(3, 8).double())
        network.train()
        for _ in range(400):
            condition, values = network._rows(output, window)
            chosen.append(condition[:, 0].long())
        all_conditions, all_values = network.eval()._rows(output, window)
    assert torch.equal(all_values[chosen[-1]], values)
    assert all_conditions.shape == (51, 1)
    assert all(len(rows.unique()) == 10 for rows in chosen)
    frequency = torch.cat(chosen).bincount(minlength=51) / 400
    torch.testing.assert_close(frequency, torch.full((51,), 10 / 51), rtol=0, atol=0.1)


def statistics_of_paths(model: Any, train: Training) -> tuple[float, float, float]:
    """Mean correlation between the channels of the paths, their spread and their mean."""
    values = model.predict(train.validation.context(0)).values[0]
    correlation = np.corrcoef((values - values.mean(0)).flatten(0, 1).numpy().T)
    off_diagonal = correlation[~np.eye(len(correlation), dtype=bool)]
    return float(off_diagonal.mean()), float(values.std()), float(values.mean())


def test_training_learns_a_correlation() -> None:
    """Channels with common noise and a little independent noise around a level."""
    generator = np.random.default_rng(5)
    common, independent = generator.normal(size=(1000, 1)), generator.normal(size=(1000, 8))
    train = training_of(1 + 0.5 * common + 0.1 * independent)
    budget = {"batches_per_epoch": 30, "batch_size": 8, "learning_rate": 0.01, "patience": 1}
    sizes: dict[str, Any] = {"diffusion_steps": 16, "most_noise": 0.5, "paths": 60, "rows": 100}
    config = tiny(TimeGradConfig, 3, budget, dropout=0.0, **sizes)
    model: Any = TimeGrad(config, device="cpu")
    model.configure(train)
    model.network = model._initial_network()
    correlation, spread, _ = statistics_of_paths(model, train)
    assert abs(correlation) < 0.1
    assert spread > 2
    model.fit(train)
    assert model.outcome["validation_loss"] < 0.3  # at least 1 without learning
    correlation, spread, mean = statistics_of_paths(model, train)
    assert correlation > 0.85
    assert spread == pytest.approx(np.hypot(0.5, 0.1), rel=0.3)
    assert mean == pytest.approx(1, abs=0.3)


def test_diverging_paths_raise_and_are_not_clipped() -> None:
    network, (context, _) = network_of(), windows_of(1)
    with torch.no_grad():
        network.denoiser.leave.bias.fill_(1e308)
    with pytest.raises(ForecastError, match=r"window 0, step 0: .*timegrad"):
        network.scenarios(Context(1e3 * context.past, context.time, context.layout), 1)


@pytest.mark.parametrize(
    ("n_channels", "millions"), [(2000, 3.74), (12_480, 88.5), (36_964, 714.7)]
)
def test_parameter_count_equals_the_reference(n_channels: int, millions: float) -> None:
    with torch.device("meta"):
        network = TimeGradNetwork(TimeGradConfig(), n_channels, 672, 96)
    count = sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
    assert count / 1e6 == pytest.approx(millions, abs=0.006 if millions < 9 else 0.06)


def test_half_precision_affects_only_encoder_and_conditioner() -> None:
    network = network_of().float()
    context, target = windows_of(dtype=torch.float32)
    losses = []
    for half in (False, True):
        torch.manual_seed(6)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            losses.append(network(context, target).loss)
    assert losses[1].dtype == torch.float32
    torch.testing.assert_close(losses[1], losses[0], rtol=0.02, atol=0)
    assert losses[1] != losses[0]
    losses[1].backward()


def test_any_number_of_rows_is_the_subsampled_variant() -> None:
    variants = TimeGradConfig.VARIANTS
    assert apply_variants(TimeGradConfig(), ["subsampled"], variants).rows == 4096
    chosen = apply_variants(TimeGradConfig(rows=77), ["subsampled"], variants)
    assert chosen.rows == 77  # an explicit number wins
    assert TimeGradConfig(rows=77).variant("ieee14") == "subsampled"
    assert TimeGradConfig(rows=77, cells=9).variant("ieee14") == "subsampled-custom"
    assert TimeGradConfig(cells=9).variant("ieee14") == "custom"
    both = apply_variants(TimeGradConfig(), ["reference", "subsampled"], variants)
    assert (both.least_scale, both.minute_period) == (1e-10, 46)
    assert both.variant("ieee14") == "reference-subsampled"


def test_fewer_rows_take_less_memory() -> None:
    train = training_of(np.ones((200, 80)))
    sizes = [TimeGrad(tiny(TimeGradConfig, rows=rows)).memory_gib(train) for rows in (None, 8)]
    assert sizes[1] < sizes[0]


def test_validation_needs_the_memory_of_all_rows() -> None:
    size = Size(80, 200, 5, CONTEXT, HORIZON, batch=4, loss_windows=4, parameters=0)
    full, subset = (TimeGrad(tiny(TimeGradConfig, rows=rows), device="cpu") for rows in (None, 8))
    numbers = full.step_numbers(size, None)
    assert subset.step_numbers(size, None) < numbers
    assert subset.validation_numbers(size, None) == full.validation_numbers(size, None) == numbers


def test_invalid_configurations_raise() -> None:
    with pytest.raises(ConfigError, match=r"blocks.*least_noise"):
        TimeGradConfig(blocks=0, least_noise=0.2)
    with pytest.raises(ConfigError, match=r"rows .*paths"):
        TimeGradConfig(rows=0, paths=0)


@pytest.mark.parametrize("rows", [None, 10])
def test_a_step_does_not_synchronise_the_device(rows: int | None) -> None:
    """It runs on tensors without data, so a GPU can capture it."""
    inputs = network_of().inputs(*windows_of(dtype=torch.float32))
    fake_mode: Any = FakeTensorMode()
    with fake_mode:
        network = TimeGradNetwork(tiny(TimeGradConfig, rows=rows), 8, CONTEXT, HORIZON, 3)
        loss = network.losses(*(fake_mode.from_tensor(part) for part in inputs)).loss
        loss.backward()
        with pytest.raises(DataDependentOutputException):
            loss.item()


@pytest.mark.parametrize(
    ("n_channels", "batch", "rows", "block", "captured", "with_kernels"),
    [
        (56, 200, None, None, True, True),
        (2000, 200, None, None, False, False),
        (2000, 200, 4096, None, True, True),
        (2000, 4, None, None, True, True),
        (2000, 4, None, 250, False, True),
        (9532, 32, 4096, None, False, True),
        (36_964, 8, None, None, False, False),
    ],
)
def test_a_step_of_few_pieces_is_captured(
    n_channels: int,
    batch: int,
    rows: int | None,
    block: int | None,
    captured: bool,
    with_kernels: bool,
) -> None:
    """A piece on a GPU has 2²⁰ rows × channels, or 2²¹ with kernels."""
    config = TimeGradConfig(rows=rows, training=TrainingConfig(batch_size=batch))
    n_rows = min(batch * 720, rows or batch * 720)
    cases = (("torch", "cuda", captured), ("triton", "kernels", with_kernels))
    for backend, kind, expected in cases:
        with torch.device("meta"):
            network = TimeGradNetwork(config, n_channels, 672, 96, block, backend)
        assert is_captured(network, torch.device("cuda"), 1) == expected
        pieces = Pieces.of(network.denoiser, n_channels, block, kind)
        assert pieces.count(n_rows) == len(list(pieces.each(n_rows)))
