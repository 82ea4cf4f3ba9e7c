"""Instruments: what is counted, measured and recorded of code that runs, from outside of it."""
