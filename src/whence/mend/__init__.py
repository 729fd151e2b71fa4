"""Interventions: changes to a pretrained model for the length of a ``with`` block, such as cures for positional bias."""

from whence.mend.protocol import AttentionTemperature, Intervention, identify_intervention, load_intervention

__all__ = ["AttentionTemperature", "Intervention", "identify_intervention", "load_intervention"]
