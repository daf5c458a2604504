"""Forecasts and their scores: from a model and a task to a row."""
