"""What the tools print and write.

messages.py   lines in the terminal
tables.py     tables of arguments; boxes.py draws them
results.py    what a tool has found, as data
csv_files.py  tables on disk; paths.py: names of files and folders
writer.py     threads that write
process.py    host and rank
"""
