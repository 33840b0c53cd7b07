"""One machine that we can talk to: the only seam to the world."""
