"""From a plan to a loaded kernel: source text, cubin, cache, driver. Knows plans and nothing above them."""
