"""Pools on Amazon ECS: base job templates and rights."""
