"""`naiad analyze`: finds a model's best configuration by measuring, with model-analyzer's flags, YAML and tables."""
