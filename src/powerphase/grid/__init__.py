"""Grids: MATPOWER cases, their admittance matrix, and AC power flow."""
