"""The experiments' pictures, each drawn from a record alone: nothing here can compute attention."""
