"""The encoder: what each token knows after it has looked at all others."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from powerphase.models.tactis.attention import AttentionLayer, over_series, over_time
from powerphase.models.tactis.config import TactisConfig
from powerphase.models.tactis.tokens import Tokens


class Encoder(nn.Module):
    """Tokens, then attention over time and over series in turn.

    Args:
        config: widths and number of layers.
        n_channels: channels of the grid, C.
        context_steps: steps that are known, T.
        horizon: steps that are asked for, H.
    """

    def __init__(
        self, config: TactisConfig, n_channels: int, context_steps: int, horizon: int
    ) -> None:
        super().__init__()
        self.tokens = Tokens(config, n_channels, context_steps, horizon)
        sizes = (config.width, config.feed_forward)
        count = config.encoder_layers
        self.in_time = nn.ModuleList(AttentionLayer(*sizes) for _ in range(count))
        self.in_series = nn.ModuleList(AttentionLayer(*sizes) for _ in range(count))

    def forward(
        self,
        past: Float[Tensor, "B K T"],
        series: Int[Tensor, "B K"],
        asked: int,
        at_once: int | None = None,
    ) -> Float[Tensor, "B K asked width"]:
        """What the tokens of the last steps know, so many of them.

        The last layers are made for these alone: what others would know then, nobody asks.

        Args:
            past: normalised contexts.
            series: which channels they are of.
            asked: steps.
            at_once: sequences that are worked on together; None for as many as keep memory small.
        """
        found: Tensor = self.tokens(past, series)
        left = len(self.in_time)
        for in_time, in_series in zip(self.in_time, self.in_series, strict=True):
            left -= 1
            found = over_time(in_time, found, found.shape[2] if left else asked, at_once)
            found = over_series(in_series, found, at_once)
        return found
