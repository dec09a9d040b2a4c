"""The peers: each module's functions take an Assignment and a device and return a Prepared."""
