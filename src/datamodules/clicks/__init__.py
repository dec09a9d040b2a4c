"""Click logs: Criteo's and synthetic ones."""
