"""Fakes and tiny recipes for segue's tests and for tests of users."""
