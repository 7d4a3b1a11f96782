"""Fakes and tiny recipes for segue's own tests and for users' tests."""
