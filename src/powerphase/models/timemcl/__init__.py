"""TimeMCL: an LSTM with sixteen hypotheses of every step, of which the nearest learns most."""
