"""Chunks to indexes to hits."""
