"""Defines the rules by which files become tables.

Every reader of segue uses these rules, and docs/your-data.md explains them. The module `column_facts` describes each
column of a file. `column_types` gives a column one type in all files of a window. `row_reader` reads a file in these
types.
"""
