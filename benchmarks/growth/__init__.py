"""How the costs of segue grow: with the state, the tensors, the log, the runs of a store, and the loss curve."""
