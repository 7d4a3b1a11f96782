"""The costs of segue on an accelerator, with their limits. `make gpu` runs this benchmark after its tests."""
