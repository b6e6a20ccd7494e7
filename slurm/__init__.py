"""What runs on the cluster's side, and a cluster of its own to try it on. Standard library only, unlike the package."""
