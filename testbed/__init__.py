"""A real model and a server process, shared by the demo, the benchmarks and the tests."""
