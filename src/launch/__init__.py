"""Process groups and devices: what a run is started on."""
