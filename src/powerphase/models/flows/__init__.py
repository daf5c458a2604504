"""The normalising flow that TempFlow and Transformer-TempFlow share: a conditional RealNVP."""
