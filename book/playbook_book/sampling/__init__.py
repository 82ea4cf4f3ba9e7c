"""From a trainer to a sampler: weights that move between layouts in memory, and the same bits on both sides."""
