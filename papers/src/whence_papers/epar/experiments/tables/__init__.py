"""The experiments' CSV files and text reports, each written from a record alone."""
