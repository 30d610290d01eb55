"""The list of channels a plan reads, deepest first: what the kernels loop over."""

from leadline.kernels.slots.dispatch import slots
from leadline.kernels.slots.reference import Slots, record_plan

__all__ = ["Slots", "record_plan", "slots"]
