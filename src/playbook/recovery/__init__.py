"""Live recovery: a replica dies, the others go on, and new processes get its state from a peer."""
