"""Does a worker keep the promises of docs/protocol.md?

`python -m pyworker.conformance -- node worker.mjs` starts the command as a user would, adds jobs,
kills it, cuts its connections, and compares what it does. docs/conformance.md describes it.
"""
