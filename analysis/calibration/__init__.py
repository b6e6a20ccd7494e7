"""Fits the modelled cluster to what the paper reports, and says how far off every reported number still is.

* `reference`: the paper's numbers, as rows of exhibit, setup and quantity;
* `setups`: the modelled runs that answer them;
* `fit`: a few global parameters of the hardware, by damped least squares on logarithms;
* `report`: the hardware file that results, with its residuals.
"""
