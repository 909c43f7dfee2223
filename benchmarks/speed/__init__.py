"""How fast memgen is on this machine, beside other programs and beside the least time possible."""
