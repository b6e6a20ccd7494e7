"""Tables and figures from the Parquet files of runs; one module per exhibit, started as `python -m analysis.NAME`.

Reads what runs wrote, through `rollpacker.metrics`, and imports nothing else of the package.
"""
