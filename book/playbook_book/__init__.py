"""What the chapters need and the library does not: the drawings of one chapter, and the graders of its exercises."""
