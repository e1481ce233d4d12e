"""What per-input execution gains: dense, compacted and adaptive networks on single test images."""
