"""The rules by which files become tables: docs/your-data.md states them in words. Every reader of segue uses them.

`facts` describes each column of a file, `layout` gives a column one type in all files of a window, `reader` reads a
file in those types.
"""
