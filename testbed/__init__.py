"""What the demo, the benchmarks and the tests share: a real model, and a server in a process of its own."""
