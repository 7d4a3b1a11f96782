"""Tests of the phases of a resume."""
