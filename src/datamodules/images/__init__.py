"""Images: folders, CIFAR-10 and synthetic ones."""
