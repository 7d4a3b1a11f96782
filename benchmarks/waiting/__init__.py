"""What a parent costs that waits: processor time, requests to the store, reading of its log."""
