"""Costs that one chapter or one widget asks for, made of what planning counts. Standard library only."""
