"""Shipped fakes and tiny recipes, for segue's tests and for yours."""
