"""PowerForge, the paper's forecaster: ordered quantile scenarios around a reference day."""
