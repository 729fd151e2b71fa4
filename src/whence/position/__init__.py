"""One mechanism a file, the waist they share, and their composition."""

from whence.position.alibi import Alibi
from whence.position.base import Position, Rows
from whence.position.composition import Sum
from whence.position.cope import Cope
from whence.position.epar import Epar
from whence.position.fire import Fire
from whence.position.kerple import Kerple
from whence.position.learned import Learned
from whence.position.no_position import NoPosition
from whence.position.power_prior import PowerPrior
from whence.position.recency import Recency
from whence.position.rotary import Rotary
from whence.position.rotary_scaling import DynamicNtk, Linear, Llama3, LongRope, Yarn
from whence.position.sandwich import Sandwich
from whence.position.shaw import Shaw
from whence.position.sink import Sink
from whence.position.sinusoidal import Sinusoidal
from whence.position.stable_mask import StableMask
from whence.position.t5 import T5Bias
from whence.position.transformer_xl import TransformerXL

__all__ = [
    "Alibi", "Cope", "DynamicNtk", "Epar", "Fire", "Kerple", "Learned", "Linear", "Llama3", "LongRope", "NoPosition",
    "Position", "PowerPrior", "Recency", "Rotary", "Rows", "Sandwich", "Shaw", "Sink", "Sinusoidal", "StableMask", "Sum",
    "T5Bias", "TransformerXL", "Yarn",
]  # fmt: skip
