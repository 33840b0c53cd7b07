"""Links: what is imposed on them, and the proof that it holds."""
