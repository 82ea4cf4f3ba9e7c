"""Numbers in few bits: formats, rounding, scales, and training in them."""
