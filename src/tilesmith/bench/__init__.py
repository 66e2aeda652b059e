"""Measuring products: suites of shapes, operands, errors against float64, and interleaved timings."""
