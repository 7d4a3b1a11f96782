"""Benchmarks that compare segue with other tools and with the limits of the machine, in one interleaved run."""
