"""What segue costs on an accelerator: six figures with their limits; `make gpu` runs it after its tests."""
