"""The texts of the tasks: Python's own, or files in the folder named by WHENCE_DATA."""
