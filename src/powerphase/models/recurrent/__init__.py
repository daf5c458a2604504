"""What all forecasters with the reference's LSTM share: inputs, encoder, loss by block, rollout."""
