"""Hypotheses of a survey about positional bias, each tested on a pretrained model."""
