"""Proofs of results by what must hold of them: they share no kernel with the op and cost about one pass."""
