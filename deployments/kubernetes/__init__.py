"""Pools on Kubernetes: base job templates, manifests and images."""
