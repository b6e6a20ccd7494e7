"""What the driver knows of engines, trainers and rewards, and the data that travels between them.

Real implementations live in `engines`, `trainers` and `rewards`; modelled ones in `sim`. They share nothing but
this package, so it imports neither torch nor ray. Every method that starts work returns at once; finished work is
fetched by a long poll (`collect`), so that one call gives many results however many requests are in flight.
"""
