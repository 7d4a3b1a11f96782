"""What segue costs on an accelerator: figures with their limits; `make gpu` runs it after its tests."""
