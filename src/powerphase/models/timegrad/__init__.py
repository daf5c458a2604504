"""TimeGrad: an LSTM whose every step is drawn by a diffusion over all channels."""
