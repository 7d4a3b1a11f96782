"""The rules by which files become tables; every reader of segue uses them, and docs/your-data.md explains them.

`facts` describes each column of a file, `layout` gives a column one type in all files of a window, `reader` reads a
file in those types.
"""
