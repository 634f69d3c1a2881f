"""Real pairs that packages carry: the defaults of ``fit`` beside simple methods."""
