"""The command line: a command parses its options, makes one library call and prints the result."""
