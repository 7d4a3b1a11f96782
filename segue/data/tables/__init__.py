"""Defines the rules by which files become tables.

Every reader of segue uses these rules, and docs/your-data.md explains them. The module `facts` describes each column of
a file, `layout` gives a column one type in all files of a window, and `reader` reads a file in the types of a layout.
"""
