"""vLLM as the policy: its server beside a child of ours that speaks the Inference port.

The control plane talks to that child as to any engine. The child owns the server's process, keeps the books of turns and
versions, and speaks token ids over a Unix socket; nothing listens on a network. Everything here runs under the interpreter
that has vLLM, except `options`.
"""
