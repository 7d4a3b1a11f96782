"""The faults of the chaos benchmark, by subject; `registry` lists every kind."""
