"""The data sets that memgen knows by name, one file each."""
