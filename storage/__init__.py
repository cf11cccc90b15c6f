"""What is kept: text and batch order, the sharded state bank, curves, checkpoints and the tracking store.

Importing this package imports none of torch, ray, mlflow and pandas, so that `--help` and `--dry-run` stay fast.
"""
