"""The steps of the shop as Temporal activities: the same methods, made known to Temporal by their names."""

from __future__ import annotations

from shop import Shop
from temporalio import activity

STEPS = (Shop.look_up, Shop.reserve, Shop.charge, Shop.pack, Shop.ship, Shop.refund, Shop.release)
HOPELESS = ("OutOfStockError", "CardDeclinedError", "OrderCancelledError")  # of no use to try again

for step in STEPS:
    activity.defn(step)
