"""Spares: what waits on the spot pool while on-demand works, tells when spot is back, and takes over when it pays."""
