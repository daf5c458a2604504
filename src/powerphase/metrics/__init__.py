"""Scores: pointwise definitions, and the one place where they are averaged."""
