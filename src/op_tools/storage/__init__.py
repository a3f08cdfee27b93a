"""Captures and statistics on disk.

store.py     one captured call: its folder and files
snapshot.py  arguments as they are now, for the thread that writes; encoding.py: their form in a file
archive.py   a file as torch.save writes it; offsets.py: where its tensors lie, for readers without torch
files.py     files appear whole; equal ones are written once
pack.py      statistics of many tensors in one file; blocks.py: the same, read without torch
"""
