"""The state bank: final states of one optimiser step, kept as initial states of the next.

- `contract`: the abstract `StateBank` and its errors; `in_process` and `sharded` implement it.
- `layout`: what one row holds, how rows fall onto shards; `wire`: how states are kept, and copied.
- `slots`: where the rows of a shard lie; `segment`: memory that processes share; `row_store`: who has arrived.
- `moments`: per-row partial sums for fitted noise; `reservoir` and `reservoir_store`: a uniform sample of all states.
- `snapshot`: files; `digest`: one hash over the content.

Importing this package imports nothing else; only `shard` (the actor), `shard_link` and `sharded` (client) import Ray.
"""
