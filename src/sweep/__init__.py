"""Many runs, each in processes of its own: what is run, on which devices, how each ended, and going on after a kill."""
