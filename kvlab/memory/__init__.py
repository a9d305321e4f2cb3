"""The pools, the allocator, and the geometry of one rank."""
