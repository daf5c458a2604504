"""What is kept on disk about forecasts and their scores; NumPy and Zarr, no torch."""
