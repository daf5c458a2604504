"""Rollouts: feeding back drawn values equals encoding them."""

import pytest
import torch
from torch import Tensor

from powerphase.errors import ForecastError
from powerphase.models.framework import PathNoise, window_generators
from powerphase.models.recurrent import (
    RecurrentConfig,
    RecurrentEncoder,
    Window,
    check_paths,
    clock_features,
    path_slices,
    roll_out,
    window_scale,
)
from tests.models.recurrent.toys import CONTEXT, HORIZON, LAGS, windows_of

CONFIG = RecurrentConfig(lags=LAGS, cells=6)


def test_a_rollout_of_the_target_equals_teacher_forcing() -> None:
    torch.manual_seed(3)
    encoder = RecurrentEncoder(CONFIG, 8, CONTEXT, condition=7).double().eval()
    context, target = windows_of()
    clock = clock_features(context.time[:, max(LAGS) :], 60)
    scale = window_scale(context.past, CONFIG, in_batch=False)
    outputs: list[Tensor] = []

    def draw(known: Tensor) -> Tensor:
        outputs.append(known)
        values = target[:, len(outputs) - 1] / scale
        return values[:, None].expand(-1, 2, -1)

    out = torch.empty(3, 2, HORIZON, 8, dtype=torch.float64)
    with torch.no_grad():
        encoded = encoder.encode(Window(context.past, None, scale), clock)
        state = roll_out(encoder, encoded, draw, out)
        known = encoder(Window(context.past, target, scale), clock)[:, -HORIZON:]
    torch.testing.assert_close(out, target[:, None].expand_as(out))
    torch.testing.assert_close(torch.stack(outputs, 2), known[:, None].expand(-1, 2, -1, -1))
    gates = encoder.project_window(Window(context.past, target, scale), clock)
    expected = encoder.run(gates)[1]
    torch.testing.assert_close(state[1][0][:, ::2], expected[1][0])


def test_an_encoded_context_can_be_rolled_out_repeatedly() -> None:
    encoder = RecurrentEncoder(CONFIG, 8, CONTEXT).double().eval()
    context, _ = windows_of()
    clock = clock_features(context.time[:, max(LAGS) :], 60)
    out = torch.empty(2, 3, 2, HORIZON, 8, dtype=torch.float64)
    with torch.no_grad():
        scale = window_scale(context.past, CONFIG, in_batch=False)
        encoded = encoder.encode(Window(context.past, None, scale), clock)
        for paths in out:
            roll_out(
                encoder, encoded, lambda known: known.sum(2, keepdim=True).expand(-1, -1, 8), paths
            )
    assert torch.equal(out[0], out[1])


def test_path_slices_cover_all_paths() -> None:
    assert path_slices(7, 3, 1, 8) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert path_slices(100, None, 1, 8) == [slice(0, 100)]
    assert path_slices(100, None, 10, 2**21) == [slice(k, k + 3) for k in range(0, 99, 3)] + [
        slice(99, 100)
    ]


def test_noise_depends_only_on_window_and_path() -> None:
    context, _ = windows_of()
    like = context.past

    def draw_noise(windows: slice, paths: slice) -> Tensor:
        generators = window_generators(4, context.time[windows], like.device)
        noise = PathNoise(generators, 10, paths)
        return torch.stack([noise.normal(5, like), noise.normal(5, like)])

    whole = draw_noise(slice(None), slice(None))
    assert torch.equal(draw_noise(slice(1, 2), slice(2, 5)), whole[:, 1:2, 2:5])
    assert whole.flatten().unique().numel() == whole.numel()


def test_paths_that_diverge_raise_with_window_and_step() -> None:
    values = torch.zeros(3, 4, HORIZON, 8)
    check_paths(values, "toy")
    values[1, 2, 3:, 5] = torch.inf
    values[2, 0, 1, 0] = torch.nan
    with pytest.raises(ForecastError, match="window 1, step 3: paths of toy"):
        check_paths(values, "toy")
