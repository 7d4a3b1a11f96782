"""The rules by which files become tables: docs/your-data.md has them in words. Every reader of segue takes these.

`facts` says what each column of a file holds, `layout` gives a column one type in all files of a window, `reader` reads
a file in those types.
"""
