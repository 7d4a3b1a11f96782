"""The fencing benchmark: random interleavings of parents and attempts over a store whose reads may be wrong."""
