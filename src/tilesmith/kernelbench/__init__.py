"""KernelBench problems: files that hold a model and its inputs, and what Tilesmith makes of them."""
