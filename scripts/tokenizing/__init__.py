"""What scripts/tokenize_hf.py is made of: inputs -> documents -> parts -> token files."""
