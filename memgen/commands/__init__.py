"""What each command of the command line does, one file per subject; every function returns what --json prints."""
