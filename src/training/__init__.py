"""What every model shares in training: the task, its step, schedules and checkpoints."""
