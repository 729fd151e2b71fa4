"""Where the text of the tasks comes from: Python itself, or files in the folder named by WHENCE_DATA."""
