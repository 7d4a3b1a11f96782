"""The yardstick for several pools: zones, cases and published costs of SkyNomad (NSDI '27), from its public artifact.

The data is not part of segue: `skynomad-artifact` on GitHub, Apache-2.0, converted into one file.
"""
