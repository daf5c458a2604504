"""TimePrism: every channel by itself, in hundreds of weighted hypotheses."""
