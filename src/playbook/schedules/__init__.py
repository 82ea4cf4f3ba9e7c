"""Pipeline schedules as data: made, checked, timed. Standard library only."""
