"""Lightning callbacks, one task per file. Those that measure also return fields of the record: `Measuring`."""
