"""Transformer-TempFlow: a Transformer whose every step ahead is a flow of all channels."""
