"""Reads and writes records of runs and renders them as tables, pictures, text and Paddle records."""
