"""The state bank: final states of one optimiser step, kept as initial states of the next.

- `layout`: what one row holds, how rows fall onto shards, precision on the wire.
- `contract`: the abstract `StateBank` and its errors; `in_process` and `sharded` implement it.
- `moments`: per-row partial sums for fitted noise; `row_store`: the rows of one shard; `snapshot`: files.

Importing this package imports nothing else; only `shard` (the actor) and `sharded` (its client) import Ray.
"""
