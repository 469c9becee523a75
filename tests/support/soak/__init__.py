"""Long runs against a real server: a mixed load with faults, mutated messages, and abuse of HTTP/2.

`python -m tests.support.soak` runs all parts. Every part ends with a table and the list of broken promises.
"""
