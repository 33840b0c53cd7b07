"""From a scenario to a live cluster and back to nothing."""
