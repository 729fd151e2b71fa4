"""The figures of the experiments, drawn from records alone: nothing here can compute attention."""
