"""Embedded engines over a pair of models, and what several tests of them look at."""

from headway.generator.decoder import Decoder
from headway.generator.engine import EmbeddedEngine
from headway.generator.settings import GeneratorSettings
from headway.models.shape import model_shape


def make_engine(models, **settings):
    """An engine of the first model; `apply` takes up the one whose place the manifest names."""
    options = {"max_running": 4, "max_context_tokens": 64, "prefill_chunk_tokens": 7, "threads": 1}
    return EmbeddedEngine(
        models[0],
        model_shape(models[0].config.to_dict()),
        GeneratorSettings(**(options | settings)),
        replica="r0",
        decode_text=None,
        read_weights=lambda manifest: models[int(manifest)].state_dict().items(),
    )


def count_prefilled(monkeypatch):
    """Return a list of the numbers of tokens that go through prefill from now on."""
    counted = []
    real = Decoder.prefill

    def prefill(self, pieces, cache):
        counted.extend(len(piece.token_ids) for piece in pieces)
        return real(self, pieces, cache)

    monkeypatch.setattr(Decoder, "prefill", prefill)
    return counted
