"""FactorForge: a few factors forecast well, mapped to every channel, with honest noise."""
