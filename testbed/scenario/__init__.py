"""What the cluster is: descriptions only, nothing alive."""
