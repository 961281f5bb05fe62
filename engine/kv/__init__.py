"""Where keys and values live: the block pool, the two layouts, the prefix index, the K/V tensors."""
