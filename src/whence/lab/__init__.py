"""Experiments: tasks, training, studies, and the records they leave."""
