"""TempFlow: an LSTM whose every step is a normalising flow of all channels."""
