"""Lightning callbacks, one idea a file. Those that measure also give their part of the record: `Measuring`."""
