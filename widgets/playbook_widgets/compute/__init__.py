"""What widgets compute from what a reader sets: without torch, so that a page runs it, too."""
