"""Work pools on Kubernetes: base job templates, manifests and images."""
