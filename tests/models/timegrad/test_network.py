"""TimeGrad: its loss and its paths in the plain form, what it learns, what it is made of."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from powerphase.errors import ConfigError, ForecastError
from powerphase.models.framework.configuration import TrainingConfig, apply_variants
from powerphase.models.framework.ops import PathNoise, window_generators
from powerphase.models.framework.stepping import is_captured
from powerphase.models.recurrent.inputs import Window
from powerphase.models.recurrent.memory import Size
from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.model import TimeGrad
from powerphase.models.timegrad.network import TimeGradNetwork
from powerphase.models.timegrad.objective import Pieces
from powerphase.scenarios import Context, Training
from tests.models.recurrent.toys import CONTEXT, HORIZON, LAGS, tiny, training_of, windows_of
from tests.models.timegrad.plain import plain_noise

REACH = max(LAGS)


def network_of(block: int | None = None, **changes: Any) -> TimeGradNetwork:
    """One whose every weight counts, the last convolution's too."""
    torch.manual_seed(1)
    network = TimeGradNetwork(tiny(TimeGradConfig, **changes), 8, CONTEXT, HORIZON, block)
    torch.nn.init.normal_(network.denoiser.leave.weight, std=0.1)
    return network.double().eval()


def plain_rows(network: TimeGradNetwork) -> tuple[Tensor, Tensor]:
    """What the encoder knows before each step of windows, and z of these."""
    past, target, clock, scale = network.inputs(*windows_of())
    known = network.encoder(Window(past, target, scale), clock)
    values = torch.cat([past, target], dim=1)[:, REACH:] / scale[:, None]
    return known.flatten(0, 1), values.flatten(0, 1)


@pytest.mark.parametrize("block", [None, 3])
def test_the_loss_and_its_gradients_are_those_of_the_plain_form(block: int | None) -> None:
    """Of context and horizon, with one diffusion step for each step of a window."""
    network = network_of(block)
    torch.manual_seed(6)
    found = network(*windows_of()).loss
    known, values = plain_rows(network)
    torch.manual_seed(6)
    step = torch.randint(4, (len(values),))
    noise = torch.randn_like(values)
    kept = network.schedule.signal[step, None]
    noisy = kept * values + (1 - kept**2).sqrt() * noise
    expected = (plain_noise(network.denoiser, noisy, known, step) - noise).square().mean()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    learned = [one for one in network.parameters() if one.requires_grad]
    slopes, wanted = (torch.autograd.grad(one, learned) for one in (found, expected))
    for one, other in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-11)


@torch.no_grad()
def test_a_path_is_drawn_by_a_whole_chain_for_every_step() -> None:
    network, (context, _) = network_of(paths=3), windows_of(2)
    found, seen = network.scenarios(context, 5).values, network.encode(context)
    noise = PathNoise(window_generators(5, context.time, torch.device("cpu")), 3)
    forced = found.transpose(0, 1).flatten(0, 1) / seen.scale.repeat(3, 1)[:, None]
    past = context.past.repeat(3, 1, 1) / seen.scale.repeat(3, 1)[:, None]
    clock = network._clock(context).repeat(3, 1, 1)
    known = network.encoder(Window(past, forced, torch.ones(6, 8).double()), clock)[:, -HORIZON:]

    def fresh() -> Tensor:
        return noise.normal(8, past).transpose(0, 1).flatten(0, 1)

    for number in range(HORIZON):
        values = fresh()
        for step in range(3, -1, -1):
            at = torch.full((6,), step)
            back = network.schedule.returns[step]
            said = plain_noise(network.denoiser, values, known[:, number], at)
            values = (values - back.noise * said) * back.stretch
            if step:
                values = values + back.spread * fresh()
        torch.testing.assert_close(forced[:, number], values)


def test_some_rows_are_learned_from_and_all_validated() -> None:
    """So few rows are drawn anew for each step, and on average tell of all."""
    network = network_of(rows=10)
    drawn = []
    with torch.no_grad():
        output = torch.arange(51.0).double().reshape(3, 17, 1)
        context, target = windows_of()
        window = Window(context.past, target, torch.ones(3, 8).double())
        network.train()
        for _ in range(400):
            known, values = network._rows(output, window)
            drawn.append(known[:, 0].long())
        whole, of_all = network.eval()._rows(output, window)
    assert torch.equal(of_all[drawn[-1]], values)
    assert whole.shape == (51, 1)
    assert all(len(one.unique()) == 10 for one in drawn)
    often = torch.cat(drawn).bincount(minlength=51) / 400
    torch.testing.assert_close(often, torch.full((51,), 10 / 51), rtol=0, atol=0.1)


def drawn_by(model: TimeGrad, train: Training) -> tuple[float, float, float]:
    """Mean correlation between channels of what is drawn, its spread, and its mean."""
    values = model.predict(train.validation.context(0)).values[0]
    between = np.corrcoef((values - values.mean(0)).flatten(0, 1).numpy().T)
    others = between[~np.eye(len(between), dtype=bool)]
    return float(others.mean()), float(values.std()), float(values.mean())


def test_a_planted_correlation_is_learned() -> None:
    """Channels with noise in common, and a little of their own, around a level."""
    generator = np.random.default_rng(5)
    shared, own = generator.normal(size=(1000, 1)), generator.normal(size=(1000, 8))
    train = training_of(1 + 0.5 * shared + 0.1 * own)
    budget = {"batches_per_epoch": 30, "batch_size": 8, "learning_rate": 0.01, "patience": 1}
    sizes = {"diffusion_steps": 16, "most_noise": 0.5, "paths": 60, "rows": 100}
    model = TimeGrad(tiny(TimeGradConfig, 3, budget, dropout=0.0, **sizes), device="cpu")
    model.configure(train)
    model.network = model._initial_network()
    correlation, spread, _ = drawn_by(model, train)
    assert abs(correlation) < 0.1
    assert spread > 2
    model.fit(train)
    assert model.outcome["validation_loss"] < 0.3  # without learning, it is 1 at least
    correlation, spread, mean = drawn_by(model, train)
    assert correlation > 0.85
    assert spread == pytest.approx(np.hypot(0.5, 0.1), rel=0.3)
    assert mean == pytest.approx(1, abs=0.3)


def test_draws_that_blow_up_are_refused_and_not_clipped() -> None:
    network, (context, _) = network_of(), windows_of(1)
    with torch.no_grad():
        network.denoiser.leave.bias.fill_(1e308)
    with pytest.raises(ForecastError, match="window 0, step 0: paths of timegrad grew beyond"):
        network.scenarios(Context(1e3 * context.past, context.time, context.layout), 1)


@pytest.mark.parametrize(
    ("n_channels", "millions"), [(2000, 3.74), (12_480, 88.5), (36_964, 714.7)]
)
def test_parameters_are_as_many_as_the_reference_s(n_channels: int, millions: float) -> None:
    with torch.device("meta"):
        network = TimeGradNetwork(TimeGradConfig(), n_channels, 672, 96)
    learned = sum(one.numel() for one in network.parameters() if one.requires_grad)
    assert learned / 1e6 == pytest.approx(millions, abs=0.006 if millions < 9 else 0.06)


def test_half_precision_is_that_of_the_front_end_and_the_conditioner() -> None:
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


def test_any_number_of_rows_has_one_word() -> None:
    variants = TimeGradConfig.VARIANTS
    assert apply_variants(TimeGradConfig(), ["subsampled"], variants).rows == 4096
    given = apply_variants(TimeGradConfig(rows=77), ["subsampled"], variants)
    assert given.rows == 77  # what was chosen stays
    assert TimeGradConfig(rows=77).variant("ieee14") == "subsampled"
    assert TimeGradConfig(rows=77, cells=9).variant("ieee14") == "subsampled-custom"
    assert TimeGradConfig(cells=9).variant("ieee14") == "custom"
    both = apply_variants(TimeGradConfig(), ["reference", "subsampled"], variants)
    assert (both.least_scale, both.minute_period) == (1e-10, 46)
    assert both.variant("ieee14") == "reference-subsampled"


def test_fewer_rows_take_less_memory() -> None:
    train = training_of(np.ones((200, 80)))
    sizes = [TimeGrad(tiny(TimeGradConfig, rows=one)).memory_gib(train) for one in (None, 8)]
    assert sizes[1] < sizes[0]


def test_validation_takes_the_memory_of_all_rows() -> None:
    size = Size(80, 200, 5, CONTEXT, HORIZON, batch=4, loss_windows=4, parameters=0)
    whole, some = (TimeGrad(tiny(TimeGradConfig, rows=rows), device="cpu") for rows in (None, 8))
    taken = whole.step_numbers(size, None)
    assert some.step_numbers(size, None) < taken
    assert some.validation_numbers(size, None) == whole.validation_numbers(size, None) == taken


def test_odd_configurations_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"and embedding must be 1 or more; least_noise and most"):
        TimeGradConfig(blocks=0, least_noise=0.2)
    with pytest.raises(ConfigError, match="rows must be 1 or more; paths must be 1 or more"):
        TimeGradConfig(rows=0, paths=0)


@pytest.mark.parametrize("rows", [None, 10])
def test_a_step_asks_the_device_for_no_number(rows: int | None) -> None:
    """Tensors without any numbers are enough for it, so a GPU can record it."""
    inputs = network_of().inputs(*windows_of(dtype=torch.float32))
    with FakeTensorMode() as without:
        network = TimeGradNetwork(tiny(TimeGradConfig, rows=rows), 8, CONTEXT, HORIZON, 3)
        loss = network.losses(*(without.from_tensor(one) for one in inputs)).loss
        loss.backward()
        with pytest.raises(DataDependentOutputException):
            loss.item()


@pytest.mark.parametrize(
    ("n_channels", "batch", "rows", "block", "recorded", "by_kernels"),
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
def test_it_is_recorded_where_a_step_is_few_pieces(
    n_channels: int,
    batch: int,
    rows: int | None,
    block: int | None,
    recorded: bool,
    by_kernels: bool,
) -> None:
    """A piece on a GPU has 2²⁰ rows × channels, or 2²¹ where kernels make it."""
    config = TimeGradConfig(rows=rows, training=TrainingConfig(batch_size=batch))
    taken = min(batch * 720, rows or batch * 720)
    for backend, kind, wanted in (("torch", "cuda", recorded), ("triton", "kernels", by_kernels)):
        with torch.device("meta"):
            network = TimeGradNetwork(config, n_channels, 672, 96, block, backend)
        assert is_captured(network, torch.device("cuda"), 1) == wanted
        pieces = Pieces.of(network.denoiser, n_channels, block, kind)
        assert pieces.count(taken) == len(list(pieces.each(taken)))
