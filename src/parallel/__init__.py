"""Training on several ranks: gradient averaging, its transports, and strategies."""
