"""How one trial runs: settings, the DeepSpeed engine, the training loop, interventions and evaluations."""
