"""The operating system: files, locks, worker processes, ranks, and imports."""
