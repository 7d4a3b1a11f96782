"""The growth of segue's costs with the state, the tensors, the log, the runs of a store, and the loss curve."""
