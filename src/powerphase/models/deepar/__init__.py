"""DeepAR: an LSTM whose every step is a Gaussian of all channels, low-rank plus diagonal."""
