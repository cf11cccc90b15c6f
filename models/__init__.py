"""What is trained: recurrent language models behind one small interface, their scans and checkpoints.

Importing this package imports no torch, so that `--help` and `--dry-run` stay fast.
"""
