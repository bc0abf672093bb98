"""How a draft is verified: trees, cache, target, sampling, acceptance, the loop, replay."""
