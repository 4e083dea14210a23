"""Programs that write the samples that come with the benchmarks. Run one after changing it:

    python -m bench.samples.pictures      # docvqa, mathverse, babyvision, mmrb
    python -m bench.samples.houses        # alfworld
    python -m bench.samples.repositories  # swebench
    python -m bench.samples.workbooks     # spreadsheetbench

The results are committed.
"""
