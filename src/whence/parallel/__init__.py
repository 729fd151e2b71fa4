"""Context parallelism: one long sequence over several GPUs or machines, with any position.

Every process holds a part of the sequence, and every mechanism sees the positions in the whole sequence::

    from whence import parallel

    x = parallel.shard(x, 1)                                    # this process's part of [batch, tokens, dim]
    q, k, v = ...                                               # as always, from the part alone
    out = parallel.attend(q, k, v, position=position, causal=True)
    loss(out).backward()
    parallel.all_reduce_gradients(model)                        # or DistributedDataParallel
"""

from whence.parallel.attend import attend
from whence.parallel.collectives import all_reduce_gradients
from whence.parallel.sharding import positions, shard, unshard
from whence.position.head_slice import HeadSlice, select_heads

__all__ = ["HeadSlice", "all_reduce_gradients", "attend", "positions", "select_heads", "shard", "unshard"]
