"""What runs on a node. It is pushed there and imports nothing else of testbed."""
