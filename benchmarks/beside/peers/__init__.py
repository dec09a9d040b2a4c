"""The peers: each module's functions take a Job and a device and return a Prepared."""
