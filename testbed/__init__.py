"""A virtual cluster on one Linux machine that tells how long distributed training takes."""

__version__ = "0.1.0"
