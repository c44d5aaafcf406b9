"""`scripts/draft_layer.py` on a whole checkpoint: its reduced model takes the experts' tensors and nothing else."""

import sys

import draft_layer


class Experts:
    """The reduced model, behind a filter for what it is given."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def load_weights(self, weights):
        return self._model.load_weights((n, tensor) for n, tensor in weights if ".ffn.experts." in n)

    def named_modules(self):
        return self._model.named_modules()


load = draft_layer.load
draft_layer.load = lambda model, config: load(Experts(model), config)
sys.exit(draft_layer.main())
