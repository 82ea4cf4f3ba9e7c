"""Training on one device or many: trainer, recomputation, instruments."""
