"""The task: which steps train, which are forecast, and how states are normalised."""
