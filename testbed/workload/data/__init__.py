"""Data sets: which bytes are the published ones, how they are read, in which order they train."""
