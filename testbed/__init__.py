"""A virtual cluster on one Linux machine that answers: how long will it train?"""

__version__ = "0.1.0"
