"""Forecasters, from a model and a task to scored rows."""
