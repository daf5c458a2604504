"""What the forecasters share: base classes, training, checkpoints, configuration."""
