"""Benchmarks: segue beside what people use today and beside what the machine can do, in one interleaved run."""
