"""Tests of trainers on a Ray cluster."""
