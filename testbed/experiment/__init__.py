"""Trials and sweeps: what is run, in which order, and what is kept."""
