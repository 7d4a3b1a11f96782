"""Pools and job templates, by platform."""
