"""ETS: additive Holt-Winters smoothing of every channel by itself."""
